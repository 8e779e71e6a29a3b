"""One virtual machine: started, talked to, ended."""
