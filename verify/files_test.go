package verify_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/verify"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// about is what a caller says of a run.
var about = report.About{Name: "model against golden, local", Duration: 1.5, Facts: []page.Fact{{Name: "dsmoe", Value: "(devel)"}}, Files: text.NewSheet("file")}

// junit and html are a report's files.
func junit(t *testing.T, r *report.Report) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.WriteJUnit(&b, about))
	return b.String()
}

func html(t *testing.T, r *report.Report) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.WriteHTML(&b, about))
	return b.String()
}

// has and hasNot look for a part of a file, which is too long to be shown.
func has(t *testing.T, file, part string) {
	t.Helper()
	assert.True(t, strings.Contains(file, part), part)
}

func hasNot(t *testing.T, file, part string) {
	t.Helper()
	assert.False(t, strings.Contains(file, part), part)
}

// requireSchema holds a document against the schema, and returns the attributes of the
// elements of each name.
func requireSchema(t *testing.T, document string) map[string][]map[string]string {
	t.Helper()
	found, err := verifytest.Schema(document)
	require.NoError(t, err)
	return found
}

// requireFiles: both files of a report are what they claim to be, and say what it says.
func requireFiles(t *testing.T, r *report.Report) {
	t.Helper()
	found := requireSchema(t, junit(t, r))
	count := map[report.Verdict]int{}
	names := map[string]bool{}
	for _, c := range r.Checks {
		count[c.Verdict]++
		names[text.Line(c.Tensor)] = true
	}
	failed, erred := count[report.Fail], 0
	switch r.Verdict {
	case report.Fail:
		failed++
	case report.Inconclusive:
		erred++
	}
	suite := found["testsuite"][0]
	for key, want := range map[string]int{"tests": len(r.Checks) + 1, "failures": failed, "errors": erred, "skipped": count[report.Skipped]} {
		require.Equal(t, strconv.Itoa(want), suite[key], key)
	}
	require.Len(t, found["testcase"], len(r.Checks)+1)
	require.Len(t, found["failure"], failed)
	require.Len(t, found["error"], erred)
	require.Len(t, found["skipped"], count[report.Skipped])
	require.Len(t, names, len(r.Checks), "a CI takes those of one name for one")

	elements := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(html(t, r)))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if x, ok := token.(xml.StartElement); ok {
			elements[x.Name.Local]++
		}
	}
	require.Equal(t, 1, elements["html"])
	require.Zero(t, elements["script"])
	require.GreaterOrEqual(t, elements["tr"], len(r.Checks))
}

// TestFilesOfAFailure: the check that failed, its measures and the cause stand in both.
func TestFilesOfAFailure(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	changed := override(t, c.Config, "rms_norm_eps", "1e-5")
	r := run(t, changed, c, p, verify.Options{Parallelism: 1})
	requireFiles(t, r)
	x := junit(t, r)
	has(t, x, `
    <testcase name="model.layers.0.input_layernorm.output" classname="model against golden, local.layer 0">
      <failure type="fail" message="off by 0.18 % of its RMS, at most 0.0078 at [0 3 47]; z 2.24e+04, limit 8; RMS of z 1.71e+04, limit 1.21; RMS of z in a row 2.24e+04, limit 3; RMS of z in a column 1.71e+04, limit 1.81; in all 29 rows; at [1 11 28]: golden 0.87704295, recomputed 0.87493396 ± 7.5e-07 (8 σ); 1856 of 1856 elements are beyond 8 σ"><![CDATA[DIVERGES   model.layers.0.input_layernorm.output  F32 [2 17 64]
           off by 0.18 % of its RMS, at most 0.0078 at [0 3 47]
           z 2.24e+04, limit 8; RMS of z 1.71e+04, limit 1.21; RMS of z in a row 2.24e+04, limit 3; RMS of z in a column 1.71e+04, limit 1.81
           in all 29 rows
           at [1 11 28]: golden 0.87704295, recomputed 0.87493396 ± 7.5e-07 (8 σ)
`)
	has(t, x, `<testcase name="model.layers.0.self_attn.q_proj.output" classname="model against golden, local.layer 0"></testcase>`)
	has(t, x, `<testcase name="verdict" classname="model against golden, local.verdict">
      <failure type="fail" message="model.layers.0.input_layernorm.output: norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 1e-05; off by 0.18 % of its RMS, at most 0.0078 at [0 3 47]; z 2.24e+04, limit 8; RMS of z 1.71e+04, limit 1.21; RMS of z in a row 2.24e+04, limit 3; RMS of z in a column 1.71e+04, limit 1.81; in all 29 rows">`)
	h := html(t, r)
	for _, want := range []string{
		`<p class="verdict bad"><strong>FAIL</strong> model.layers.0.input_layernorm.output: norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 1e-05</p>`,
		`<dt>diverges</dt><dd>model.layers.0.input_layernorm.output  F32 [2 17 64]</dd>`,
		`<dd>at [1 11 28]: golden 0.87704295, recomputed 0.87493396 ± 7.5e-07 (8 σ)</dd>`,
		`<dt>cause</dt><dd>norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 1e-05</dd>`,
		`<figcaption>model.layers.0.input_layernorm.output: the largest residual of each element. Beyond 8 σ rounding does not explain it.</figcaption>`,
		`<title>1, 16, 63: `, `padding, not compared`, `class="divider"`, `the largest`, `✗ input_layernorm 1.4e&#43;04×, 2 failed</text>`,
		`<title>model.layers.3.post_attention_layernorm.output: fail `, `<title>layer 2, expert 7: 0 choices</title>`,
		`<dt>manifest.json</dt><dd>sha256:`,
	} {
		has(t, h, want)
	}
	again := run(t, changed, c, p, verify.Options{Parallelism: 3})
	assert.True(t, x == junit(t, again) && h == html(t, again), "for any number of threads")
}

// TestFilesOfOtherVerdicts: what is no pass is never green, and says why.
func TestFilesOfOtherVerdicts(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-bf16")
	r := run(t, c.Config, c, p, verify.Options{Mode: report.Chained})
	requireFiles(t, r)
	has(t, junit(t, r), `<error type="inconclusive" message="not a pass: end to end, BF16 rounding grows without a usable limit`)
	has(t, junit(t, r), `<skipped type="skipped" message="chained mode has no usable limit in BF16">`)
	has(t, html(t, r), `<p class="verdict unclear"><strong>INCONCLUSIVE</strong> not a pass: end to end`)
	has(t, html(t, r), `There is no limit for it.`)
	hasNot(t, html(t, r), `The limit is at 1.`)

	r = run(t, override(t, c.Config, "num_hidden_layers", "3"), shallow{c}, p, verify.Options{Undiagnosed: true})
	has(t, junit(t, r), `message="model.layers.3.input_layernorm.output: the model has no such stage; none of the known mistakes explains it"`)

	r = &report.Report{Verdict: report.Inconclusive, Mode: report.Local, Checks: []report.Check{{Tensor: "model.norm.output", Verdict: report.Skipped},
		{Tensor: "loss.grad", Verdict: report.Pass}, {Tensor: "model.embed_tokens.output", Verdict: report.Pass, Margin: new(float64)}}}
	has(t, html(t, r), `>not checked</text>`)
	has(t, html(t, r), `>no bound</text>`)
	has(t, html(t, r), `>embed_tokens 0%</text>`)

	c, p = open(t, "v1-base/golden-f32")
	r = run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{Mode: report.Chained})
	requireFiles(t, r)
	has(t, html(t, r), `residual, RMS of the golden`)
	hasNot(t, html(t, r), `Beyond 8 σ`)

	r = run(t, c.Config, c, p, verify.Options{Limits: map[string]float64{"mlp.output": 2}})
	has(t, html(t, r), `<p class="verdict good"><strong>PASS (user-supplied limits) (45 of 48 experts, 177 of 186 weights exercised)</strong> 58 of 58 golden tensors`)
	has(t, junit(t, r), `<property name="verdict" value="PASS (user-supplied limits) (45 of 48 experts, 177 of 186 weights exercised)"></property>`)

	r = report.Unfinished(errors.New("model: no such file\x1b"))
	found := requireSchema(t, junit(t, r))
	assert.Equal(t, []map[string]string{{"type": "inconclusive", "message": `not a pass: model: no such file\x1b`}}, found["error"])
	assert.Len(t, found["testcase"], 1)
	has(t, html(t, r), `<strong>INCONCLUSIVE</strong> not a pass: model: no such file\x1b</p>`)
	hasNot(t, html(t, r), "PASS")
}

// TestFilesTakeAnyName: names of a pack may be anything, and do no harm.
func TestFilesTakeAnyName(t *testing.T) {
	t.Parallel()
	evil := "</script><script>alert(1)</script>]]>\"'&\x00\x1b[2J\xff\u202e"
	inf := math.Inf(1)
	r := &report.Report{Verdict: report.Fail, Mode: report.Local, FirstDivergence: &evil, Reasons: []string{evil + "\n" + evil},
		Cause: &report.Cause{ID: evil, Text: evil}, Causes: []report.Cause{{ID: evil, Text: evil}}, Hints: []report.Cause{{ID: evil, Text: evil}}}
	for i := range 3 {
		r.Checks = append(r.Checks, report.Check{Tensor: fmt.Sprint(evil, i), Verdict: report.Fail, Reason: evil, DType: evil, Margin: &inf})
	}
	r.Checks[0].Tensor = evil
	r.Checks[0].Pattern = &report.Pattern{RowStep: 1, ColumnStep: 1, Unit: evil, Cells: [][]*float64{{nil, new(float64)}}}
	r.Golden.Reference.Model, r.Golden.Manifest = evil, evil
	r.Routing.Layers = []report.LayerRouting{{Layer: evil, Load: []int{1, 0}}}
	requireFiles(t, r)
	hasNot(t, html(t, r), "<script>")
	for _, file := range []string{junit(t, r), html(t, r)} {
		assert.False(t, strings.ContainsAny(file, "\x00\x1b\u202e"))
	}
}

// TestPattern: cells hold the largest residual of their elements, of the first check that
// fails.
func TestPattern(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	r := run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{Undiagnosed: true})
	i := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Pattern != nil })
	require.Equal(t, *r.FirstDivergence, r.Checks[i].Tensor)
	pattern := r.Checks[i].Pattern
	require.Len(t, pattern.Cells, 34)
	require.Len(t, pattern.Cells[33], 64)
	require.Equal(t, []int{1, 11, 28}, r.Checks[i].Index)
	z := *r.Checks[i].Z
	require.Equal(t, z, *pattern.Cells[17+11][28])
	for i, row := range pattern.Cells {
		for _, cell := range row {
			require.LessOrEqual(t, *cell, z)
			require.Equal(t, i >= 17 && i < 22, *cell == 0, "padding is not compared")
			require.True(t, *cell == 0 || *cell > 8)
		}
	}
	for _, c := range r.Checks[i+1:] {
		require.Nil(t, c.Pattern)
	}
}
