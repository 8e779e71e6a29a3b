"""The agent: a daemon on each host that starts and stops models, jobs and Ray nodes as the cluster's records say."""
