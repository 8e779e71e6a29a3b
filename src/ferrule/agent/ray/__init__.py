"""Ray on the cluster: beside each agent a Ray node, for programs that need Ray. The agents themselves need none."""
