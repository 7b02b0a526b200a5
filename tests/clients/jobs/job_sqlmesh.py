"""SQLMesh: seeds, views, tables, incremental models, audits and snapshots of a project, planned and run twice."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
from same import same

FILES = {
    "config.yaml": """
gateways:
  local:
    connection:
      type: postgres
      host: {host}
      port: {port}
      user: {user}
      password: ''
      database: {database}
default_gateway: local
model_defaults: {{ dialect: postgres, start: 2024-01-01 }}
disable_anonymized_analytics: true
""",
    "seeds/orders.csv": "id,person,amount,day\n1,ann,1.50,2024-01-01\n2,ben,2.25,2024-01-02\n3,ann,3.00,2024-01-03\n",
    "models/orders.sql": """
MODEL (name sm.orders, kind SEED (path '$root/seeds/orders.csv'), columns (id int, person text, amount numeric(10,2), day date));
""",
    "models/daily.sql": """
MODEL (name sm.daily, kind INCREMENTAL_BY_TIME_RANGE (time_column day), cron '@daily', grain day,
  audits (not_null(columns := (day)), unique_values(columns := (day))));
SELECT day, sum(amount)::numeric(10,2) AS amount FROM sm.orders WHERE day BETWEEN @start_date AND @end_date GROUP BY day
""",
    "models/by_person.sql": """
MODEL (name sm.by_person, kind FULL, audits (number_of_rows(threshold := 1)));
SELECT person, count(*)::int AS orders FROM sm.orders GROUP BY person
""",
    "models/latest.sql": """
MODEL (name sm.latest, kind INCREMENTAL_BY_UNIQUE_KEY (unique_key person));
SELECT person, max(day) AS day FROM sm.orders GROUP BY person
""",
    "models/shown.sql": "MODEL (name sm.shown, kind VIEW);\nSELECT person, orders FROM sm.by_person WHERE orders > 1\n",
    "models/history.sql": """
MODEL (name sm.history, kind SCD_TYPE_2_BY_COLUMN (unique_key person, columns [orders]));
SELECT person, orders FROM sm.by_person
""",
    "tests/test_by_person.yaml": """
test_by_person:
  model: sm.by_person
  inputs:
    sm.orders:
      rows: [{{ id: 1, person: ann, amount: 1, day: 2024-01-01 }}]
  outputs:
    query:
      rows: [{{ person: ann, orders: 1 }}]
""",
}


def sqlmesh(*arguments: str) -> str:
    program = Path(sys.executable).parent / "sqlmesh"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


host, port = os.environ["PGHOST"], os.environ.get("PGPORT", "5432")
place = {"host": host, "port": port, "user": os.environ["PGUSER"], "database": os.environ["PGDATABASE"]}
for name, text in FILES.items():
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    has_places = path.suffix == ".yaml"
    path.write_text(text.format(**place) if has_places else text)

with psycopg.connect(autocommit=True) as connection:
    sqlmesh("plan", "--auto-apply", "--no-prompts")
    rows = connection.execute("SELECT day::text, amount::text FROM sm.daily ORDER BY 1").fetchall()
    same(rows, [("2024-01-01", "1.50"), ("2024-01-02", "2.25"), ("2024-01-03", "3.00")])
    same(connection.execute("SELECT * FROM sm.shown").fetchall(), [("ann", 2)])
    same(connection.execute("SELECT count(*) FROM sm.latest").fetchall(), [(2,)])
    with Path("seeds/orders.csv").open("a") as file:
        file.write("4,ben,4.00,2024-01-04\n")
    sqlmesh("plan", "--auto-apply", "--no-prompts")
    sqlmesh("run", "--ignore-cron")
    same(connection.execute("SELECT count(*) FROM sm.shown").fetchall(), [(2,)])
    same(connection.execute("SELECT count(*) FROM sm.daily").fetchall(), [(4,)])
    sqlmesh("audit")
    sqlmesh("plan", "dev", "--auto-apply", "--no-prompts", "--include-unmodified")
    same(connection.execute("SELECT count(*) FROM sm__dev.shown").fetchall(), [(2,)])
    assert "ann" in sqlmesh("fetchdf", "SELECT * FROM sm.shown ORDER BY person")
    sqlmesh("invalidate", "dev", "--sync")
