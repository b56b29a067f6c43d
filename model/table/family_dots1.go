package table

// familyDots1 is the table of dots.llm1.
var familyDots1 = Family{
	ModelTypes: []string{"dots1"},
	Rows:       groupedRows(routerBias(moe)),
	Ignored:    familyV1.Ignored,
}
