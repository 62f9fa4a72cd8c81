"""How the tokens of sequences fill granules: ranges, blocks, and what fits."""
