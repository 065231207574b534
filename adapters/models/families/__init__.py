"""One file per maker: what each family's templates look like, where it stops, how it calls tools."""
