#!/bin/bash
# Starts an executor of Spark if the driver asks for one, otherwise flowctl.
set -eu
if [ "${1:-}" != executor ]; then
    exec flowctl "$@"
fi
export JAVA_HOME
JAVA_HOME=$(python -c 'from derive.spark.session import ensure_java; print(ensure_java())')
options=()
while IFS='=' read -r name value; do
    [[ $name == SPARK_JAVA_OPT_* ]] && options+=("$value")
done < <(env)
exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$SPARK_HOME/jars/*" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
