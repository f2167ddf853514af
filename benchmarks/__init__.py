"""Speed against peers and against the machine, with committed results."""
