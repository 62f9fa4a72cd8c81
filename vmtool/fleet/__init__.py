"""Results of many machines: gathered, judged against each other, and what explains a difference."""
