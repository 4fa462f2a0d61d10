"""Web pages: the explorer of a study, its report, the fleet page, and the server behind them."""
