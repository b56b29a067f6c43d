package convert

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/engine"
	"dsmoe/model/tensor"
)

// TestReportOfLosses: what a cast flushed and what went with its block are told apart, and
// the error of what was quantised is that of all tensors together, the worst by name.
func TestReportOfLosses(t *testing.T) {
	r := &Report{Lost: []engine.LostTensor{
		{Name: "cast", Loss: tensor.Loss{Rounded: 12345, Denormal: 7, Flushed: 3, NotFinite: 1}},
		{Name: "other", Loss: tensor.Loss{Denormal: 8}},
		{Name: "a", Loss: tensor.Loss{Flushed: 32, Squares: 100, Errors: 1, Largest: 0.5}},
		{Name: "b", Loss: tensor.Loss{Overflow: 64, Squares: 300, Errors: 27, Largest: 0.25}},
		{Name: "exact", Loss: tensor.Loss{Squares: 24}},
	}}
	var b strings.Builder
	r.writeLost(&b)
	require.Equal(t, `elements that were rounded: 12,345, in cast (12,345)
elements that were rounded to denormal numbers: 15, in other (8), cast (7)
elements that became infinite: 64, in b (64)
elements that became zero: 3, in cast (3)
elements that became zero with their whole block: 32, in a (32)
elements that are infinite or NaN in the source: 1, in cast (1)
quantised weights are off by 26 % of their root mean square, most in b (30 %), a (10 %), exact (0 %); the largest error is 5.00e-01, in a; dsmoe verify says what that does to the model
`, b.String())
}
