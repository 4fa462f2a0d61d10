"""Upper bounds on the loss given the proxy, one module for each method."""
