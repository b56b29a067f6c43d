package page_test

import (
	"bytes"
	"fmt"

	"dsmoe/text"
	"dsmoe/text/page"
)

func Example() {
	sheet := text.NewSheet("expert", ">tokens")
	sheet.Add(text.Plain("3"), text.Whole(1200))
	p := page.New("Load of the experts")
	p.Verdict(page.Good, "PASS", "Every expert was reached.")
	p.Section("Layer 1")
	p.Facts(page.Fact{Name: "tokens", Value: "4,096"})
	p.Table(sheet)
	p.Figure(page.Bars{Title: "tokens per expert", Name: "tokens", Rows: []page.Bar{{Label: "expert 3", Value: 1200}}}, "Tokens that were routed to each expert.")
	var out bytes.Buffer
	fmt.Println(p.WriteHTML(&out))
	// Output: <nil>
}

func ExampleWriteSVG() {
	var out bytes.Buffer
	fmt.Println(page.WriteSVG(&out, page.Heatmap{
		Title: "norms of the routed experts", Name: "norm", RowName: "layer", ColName: "expert",
		Rows: []string{"1", "2"}, Columns: []string{"0", "1", "2"},
		Values: [][]float64{{1.2, 1.3, 0.9}, {1.1, 1.2, 1.4}},
	}, "DeepSeek-V2-Lite"))
	// Output: <nil>
}
