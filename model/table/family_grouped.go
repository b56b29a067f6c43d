package table

// familyGrouped is the table of dots1 and Solar-Open.
var familyGrouped = Family{
	ModelTypes: []string{"dots1", "solar_open"},
	Rows:       groupedRows(routerBias(moe)),
	Ignored:    familyV1.Ignored,
}
