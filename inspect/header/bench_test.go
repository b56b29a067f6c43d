package header

import (
	"fmt"
	"io"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// BenchmarkManyFindings audits checkpoints with 200,000 findings, which fold into few lines
// or into none, and reports nanoseconds per finding: they do not grow with the number.
func BenchmarkManyFindings(b *testing.B) {
	unexpected := func(pattern string, step int) func(c *inspect.Checkpoint, n int) {
		return func(c *inspect.Checkpoint, n int) {
			for i := range n {
				c.Files[1].Tensors = append(c.Files[1].Tensors, tensor.Info{Name: fmt.Sprintf(pattern, step*i),
					DType: tensor.BF16, Shape: []int{1}})
			}
		}
	}
	for name, damage := range map[string]func(c *inspect.Checkpoint, n int){
		"folded":      unexpected("model.layers.1.mlp.experts.%d.up_proj.scale", 1),
		"every other": unexpected("model.layers.%d.scale", 2),
		"apart":       unexpected("foreign%d.weight", 1),
		"missing": func(c *inspect.Checkpoint, n int) {
			c.Config, _ = c.Config.Override(map[string]jsontext.Value{"n_routed_experts": jsontext.Value(fmt.Sprint(n / 9)),
				"vocab_size": jsontext.Value("256")})
		},
		"broken": func(c *inspect.Checkpoint, n int) {
			for i := range 163 {
				c.Files = append(c.Files, inspect.File{Name: fmt.Sprintf("model-%05d-of-00163.safetensors", i)})
			}
			for i := range n {
				c.Findings = append(c.Findings, inspect.Broken.Of(problem.Problem{File: c.Files[2+i%163].Name, Tensor: fmt.Sprintf("model.layers.0.mlp.experts.%d.up", i),
					Cause: "not listed in the index"}))
			}
		},
	} {
		for _, n := range []int{20_000, 200_000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				c := inspecttest.Whole(configtest.Fixture(b, "v1-base/checkpoint"))
				damage(c, n)
				for b.Loop() {
					if err := Audit(c).WriteText(io.Discard); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/finding")
			})
		}
	}
}
