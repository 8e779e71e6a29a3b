"""Why a plan is as fast as it is."""
