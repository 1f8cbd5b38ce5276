"""The paper's experiments: `run` computes, `plot` draws."""
