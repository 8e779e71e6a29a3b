"""Products of packed weights by kernels of others, for matrices of which these are faster than ours (`choice`)."""
