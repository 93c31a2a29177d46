"""Frontier-group dispatch over SGLang: by our admission, by the server's priorities, and a bare client beside them."""
