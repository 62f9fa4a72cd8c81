"""Results of many machines: gathering them, judging them, and explaining differences."""
