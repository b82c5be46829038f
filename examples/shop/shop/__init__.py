"""A web shop that reads through Lookaside: pages in `pages`, reads in `catalogue`, writes in `orders`."""
