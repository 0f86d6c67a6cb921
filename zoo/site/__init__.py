"""The browsing site: a static build and a local server that answers its try-it panel."""
