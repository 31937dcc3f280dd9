"""What people look at: findings about a dataset, drawings, charts, pages and terminal tables."""
