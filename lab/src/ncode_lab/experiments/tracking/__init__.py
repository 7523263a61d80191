"""State tracking: words of groups, learnt from short ones and continued to long ones. Not in the paper."""
