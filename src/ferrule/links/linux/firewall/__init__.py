"""The packet filters of Linux: nftables, iptables, ufw, firewalld."""
