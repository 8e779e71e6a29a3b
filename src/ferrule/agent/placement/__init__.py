"""Where the ranks of a model go on the hosts of a cluster, and how agents start them there."""
