"""The controller: has instances maintain what is wanted, and makes any number of replicas look like one."""
