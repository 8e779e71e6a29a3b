"""The process on each host that holds models and jobs as the cluster wants them: composes engine and cluster."""
