"""Questions, answers, prices and the table that models are fitted on. Pure."""
