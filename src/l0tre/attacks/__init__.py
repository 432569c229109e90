"""Upper bounds: adversarial inputs with as few changed groups as can be found."""
