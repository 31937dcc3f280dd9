"""Model families behind one protocol, and the factory that names them."""
