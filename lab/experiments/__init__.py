"""The paper's experiments and similar ones on other data; windows as fev-bench has them; records of both."""
