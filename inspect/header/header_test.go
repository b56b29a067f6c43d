package header

import (
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

func TestListNeedsNoConfig(t *testing.T) {
	c := inspecttest.Whole(configtest.Fixture(t, "v1-base/checkpoint"))
	c.Config = nil
	c.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "config.json", Cause: "missing"})}
	l := List(c)
	assert.Empty(t, l.Broken)
	assert.True(t, slices.IsSortedFunc(l.Tensors, func(a, b inspect.Tensor) int {
		return text.CompareNames(a.Name,
			b.Name)
	}))

	p := l.Fold()
	sum, bytes := 0, int64(0)
	for _, x := range p.Patterns {
		sum += x.Count
		bytes += x.Bytes
	}
	assert.Equal(t, len(l.Tensors), sum)
	assert.Equal(t, l.Bytes, bytes)
	assert.Contains(t, inspecttest.Printed(t, p),
		"model.layers.{1..3}.mlp.experts.{0..15}.up_proj.weight    x48  BF16  [24 64]   144.00 KiB  2 shards\n")
}

// TestFoldKeepsShapesAndDTypesApart: tensors fold only with their like.
func TestFoldKeepsShapesAndDTypesApart(t *testing.T) {
	c := &inspect.Checkpoint{Files: []inspect.File{{Name: "f", Tensors: []tensor.Info{
		{Name: "a.0", DType: tensor.F32, Shape: []int{2}},
		{Name: "a.1", DType: tensor.F16, Shape: []int{2}},
		{Name: "a.2", DType: tensor.F32, Shape: []int{2}},
		{Name: "a.3", DType: tensor.F32, Shape: []int{3}},
	}}}}
	var got []string
	for _, p := range List(c).Fold().Patterns {
		got = append(got, p.Name)
	}
	assert.Equal(t, []string{"a.{0,2}", "a.1", "a.3"}, got)
}

func TestSummary(t *testing.T) {
	c := inspecttest.Whole(configtest.Fixture(t, "v1-base/checkpoint"))
	c.Files[0].Tensors[0].DType = tensor.F32
	s := Summarize(c)
	assert.Equal(t, &layers{4, 1, 3, 0}, s.Layers)
	assert.Equal(t, &experts{16, 4, 2}, s.Experts)
	assert.Equal(t, []dtypeSum{{tensor.BF16, s.Tensors - 1, s.Bytes - 256*64*4}, {tensor.F32, 1, 256 * 64 * 4}}, s.DTypes)
	assert.Zero(t, s.Problems)
	assert.Contains(t, inspecttest.Printed(t, s), "audit       clean")

	c.Config = nil
	c.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "config.json", Cause: "missing"}),
		inspect.Note.Of(problem.Problem{Cause: "odd"})}
	s = Summarize(c)
	assert.Equal(t, 1, s.Problems)
	assert.Nil(t, s.Parameters)
	assert.Contains(t, inspecttest.Printed(t, s), "unknown: config.json cannot be used")
	assert.Contains(t, inspecttest.Printed(t, s), "1 problem, 1 note")
}

func TestArchOf16B(t *testing.T) {
	a := Describe("config.json", configtest.Fixture(t, "states/deepseek-moe-16b"), Weights{}, 0)
	assert.Equal(t, moduleTotal{"total", 5466, 16_375_728_128, 2_828_650_496, 5_237_637_120}, a.Total)
	assert.Equal(t, activatedCounts{2_828_650_496, 2_618_935_296, 2_409_220_096}, a.Activated)
	assert.Equal(t, weightBytes{fromConfig, 32_751_456_256, []dtypeBytes{{tensor.BF16, 32_751_456_256}}}, a.Weights)
	assert.Equal(t, forwardFLOPs{4096, 5_237_637_120, 939_524_096, 6_177_161_216}, a.Forward)
	assert.Equal(t, &kvCache{DType: tensor.BF16, BytesPerToken: 229_376, Positions: 4096, Bytes: 896 << 20}, a.KVCache)
	assert.Equal(t, "74974368", a.Choice.Combinations)
	assert.InDelta(t, 26.16, a.Choice.Log2, 0.005)
	assert.Equal(t, 6.0/64, a.Choice.Sparsity)
	assert.Contains(t, inspecttest.Printed(t, a), "C(64,6) = 74,974,368 = 2^26.2 sets of experts")
}

func TestArchOfADenseModelHasNoExperts(t *testing.T) {
	a := Describe("x", configtest.Fixture(t, "v1-dense/checkpoint"), Weights{}, 7)
	assert.Nil(t, a.Experts)
	assert.Nil(t, a.Choice)
	assert.Equal(t, 7, a.Forward.Positions)
	assert.NotContains(t, inspecttest.Printed(t, a), "C(")
}

// TestArchOfGroups: a token chooses from some groups only where topk_method says so.
func TestArchOfGroups(t *testing.T) {
	v3 := Describe("x", configtest.Fixture(t, "v3/checkpoint"), Weights{}, 0)
	assert.Equal(t, []int{4, 2}, []int{v3.Choice.Groups, v3.Choice.TopKGroup})
	assert.Contains(t, inspecttest.Printed(t, v3), "fewer of them occur: a token chooses from 2 of 4 groups\n")

	greedy := configtest.Fixture(t, "v2-group-yarn/checkpoint")
	assert.Equal(t, 4, Describe("x", greedy, Weights{}, 0).Choice.Groups)
	v2 := Describe("x", inspecttest.Override(t, greedy, "topk_method", `"greedy"`), Weights{}, 0)
	assert.Zero(t, v2.Choice.Groups)
	assert.NotContains(t, inspecttest.Printed(t, v2), "groups")
}

func TestArchSaysWhenItAssumesADType(t *testing.T) {
	a := Describe("x", configtest.Parse(t, `{"model_type": "deepseek"}`), Weights{}, 0)
	assert.Equal(t, tensor.BF16, a.Weights.DTypes[0].DType)
	assert.Contains(t, inspecttest.Printed(t, a), "assumed: the config has no torch_dtype")
}

func TestLog2OfAnySize(t *testing.T) {
	assert.Zero(t, log2(big.NewInt(1)))
	assert.Equal(t, 32.0, log2(big.NewInt(1<<32)))
	assert.Equal(t, 4000.0, log2(new(big.Int).Lsh(big.NewInt(1), 4000)))
	assert.InDelta(t, math.Log2(74974368), log2(big.NewInt(74974368)), 1e-12)
}

// TestReportsHaveListsNotNull: a list with nothing in it is [] in JSON.
func TestReportsHaveListsNotNull(t *testing.T) {
	empty := &inspect.Checkpoint{Path: "x"}
	for _, report := range []any{Summarize(empty), List(empty), List(empty).Fold(), Audit(empty)} {
		data, err := json.Marshal(report)
		require.NoError(t, err)
		assert.NotContains(t, string(data), "null")
	}
}

// TestListingSaysWhatItLacks: a line per tensor, the total, and the files that could not
// be read.
func TestListingSaysWhatItLacks(t *testing.T) {
	c := &inspect.Checkpoint{Path: "x", Files: []inspect.File{{Name: "a b", Tensors: []tensor.Info{
		{Name: "w.10", DType: tensor.BF16, Shape: []int{2, 3}},
		{Name: "w.9", DType: tensor.F8E4M3, Shape: []int{1 << 20}},
	}}}, Findings: []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "b", Cause: "cut off"}),
		inspect.Broken.Of(problem.Problem{File: "config.json", Cause: "missing"}),
		inspect.Note.Of(problem.Problem{Cause: "odd"})}}
	assert.Equal(t, `w.9   F8_E4M3  [1048576]  1.00 MiB  "a b"
w.10  BF16     [2 3]          12 B  "a b"
2 tensors, 1.00 MiB
  broken: b: cut off
`, inspecttest.Printed(t, List(c)))
}

// TestAuditOfNothing: without tensors there is nothing to hold against the config.
func TestAuditOfNothing(t *testing.T) {
	a := Audit(&inspect.Checkpoint{Path: "x", Config: configtest.Fixture(t, "v1-base/checkpoint")})
	assert.Equal(t, []string{"the tensors against the config: there are none", "the values of the weights"}, a.NotChecked)
	assert.Empty(t, a.Findings, "nobody knows what is missing")
}
