package text_test

import (
	"fmt"
	"os"

	"dsmoe/text"
)

func ExampleQuote() {
	fmt.Println(text.Quote("model.layers.0.mlp.gate.weight"))
	fmt.Println(text.Quote("\x1b[2Jmodel.norm.weight\n"))
	// Output:
	// model.layers.0.mlp.gate.weight
	// "\x1b[2Jmodel.norm.weight\n"
}

func ExampleRanges() {
	fmt.Println("no token reached experts", text.Ranges([]int{0, 1, 2, 3, 7}))
	// Output: no token reached experts 0-3, 7
}

func ExampleSet() {
	fmt.Println("model.layers." + text.Set([]int{1, 2, 3, 7}, 2) + ".mlp.gate")
	fmt.Println("model.layers." + text.Set([]int{0, 2, 4, 6, 8}, 3) + ".mlp.gate")
	// Output:
	// model.layers.{1..3,7}.mlp.gate
	// model.layers.{0,2,…,8}.mlp.gate
}

func ExampleTable() {
	t := text.Table{Align: "lr"}
	t.Add("MODULE", "PARAMETERS")
	t.Add("mlp.experts", text.Grouped(int64(14_948_499_456)))
	t.Add("mlp.gate", text.Grouped(3_538_944))
	t.WriteText(os.Stdout)
	// Output:
	// MODULE           PARAMETERS
	// mlp.experts  14,948,499,456
	// mlp.gate          3,538,944
}
