package verify_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/bounds"
	"dsmoe/verify/report"
)

// document is a report's JSON.
func document(t *testing.T, r *report.Report) (d map[string]any) {
	t.Helper()
	var b strings.Builder
	require.NoError(t, text.WriteJSON(&b, r))
	require.NoError(t, json.Unmarshal([]byte(b.String()), &d))
	return d
}

// TestBiasPinsAreNumbers where the golden chose experts of groups that the model masks: their
// scores are -∞, and say nothing of biases.
func TestBiasPinsAreNumbers(t *testing.T) {
	t.Parallel()
	for key, value := range map[string]string{"topk_group": "1", "n_group": "8"} {
		c, p := open(t, "v3/golden-f32")
		r := run(t, override(t, c.Config, key, value), c, p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict)
		require.NotEmpty(t, r.Routing.Biases)
		_, err := json.Marshal(r)
		require.NoError(t, err, "encoding/json refuses NaN")
		for _, pins := range r.Routing.Biases {
			require.GreaterOrEqual(t, pins.Median, 0.0)
			require.GreaterOrEqual(t, pins.Widest, pins.Median)
		}
	}
}

// setFloats sets all floats in v, those of nil pointers included.
func setFloats(v reflect.Value, to float64) {
	switch v.Kind() {
	case reflect.Float64:
		v.SetFloat(to)
	case reflect.Pointer:
		if v.IsNil() && v.Type().Elem().Kind() == reflect.Float64 {
			v.Set(reflect.New(v.Type().Elem()))
		}
		if !v.IsNil() {
			setFloats(v.Elem(), to)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				setFloats(v.Field(i), to)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			setFloats(v.Index(i), to)
		}
	}
}

// TestNoNumberIsNotFinite: whatever a run measures, no document holds NaN or an infinity.
func TestNoNumberIsNotFinite(t *testing.T) {
	t.Parallel()
	unprintable := regexp.MustCompile(`NaN|[+-]Inf|Inf\b`)
	c, p := open(t, "v3/golden-f32")
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		r := run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{Undiagnosed: true, Mode: mode})
		require.False(t, unprintable.MatchString(printed(t, r)+junit(t, r)+html(t, r)))
		r.Rounding = &report.Rounding{Layers: []report.RankedError{{}}, Experts: []report.RankedError{{}}, Stages: []string{"norm"}}
		for i := range r.Checks {
			r.Checks[i].Neuron, r.Checks[i].Gap = &bounds.Neuron{}, &report.Gap{}
		}
		for _, not := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			setFloats(reflect.ValueOf(r), not)
			document(t, r)
			requireFiles(t, r)
			for _, file := range []string{printed(t, r), junit(t, r), html(t, r)} {
				assert.Empty(t, unprintable.FindAllString(file, 3), "%s %v", mode, not)
			}
		}
	}
}

// TestFailureNamesItsMeasure: where a neuron's z alone is beyond its limit, every form of the report says that, behind
// how much the stage is off.
func TestFailureNamesItsMeasure(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-f16/golden-f16")
	const stage = "model.layers.3.mlp.shared_experts.output"
	r := run(t, c.Config, c, p, verify.Options{Limits: map[string]float64{stage: 0.25}})
	require.Equal(t, stage, *r.FirstDivergence)
	i := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Verdict == report.Fail })
	failed := r.Checks[i]
	require.Len(t, failed.Failed, 1)
	require.Equal(t, "neuron_z", failed.Failed[0].Name)
	require.Equal(t, *failed.NeuronZ, *failed.Failed[0].Value)
	require.Equal(t, 6.0, failed.Failed[0].Limit)
	require.Less(t, *failed.Z, 8.0)
	said := fmt.Sprintf("z of a neuron %.3g, limit 6", *failed.NeuronZ)
	neuron := fmt.Sprintf("neuron %d: z %.3g, limit 6; that is in token %d, and other neurons may explain its residual as well", failed.Neuron.Index, failed.Neuron.Z, failed.Neuron.Token)
	has(t, printed(t, r), "DIVERGES   "+stage+"  F16 [1 15 64]\n           off by ")
	has(t, printed(t, r), "\n           "+said+"\n")
	has(t, printed(t, r), "\n           "+neuron+"\n")
	require.Contains(t, failed.Rows, fmt.Sprintf("in row %d alone", failed.Neuron.Token))
	has(t, junit(t, r), `; `+said+`; `+failed.Rows+`; at `)
	has(t, junit(t, r), `; `+said+`; `+failed.Rows+`; none of the known`)
	has(t, html(t, r), `; none of the known mistakes explains it</p>`)
	has(t, html(t, r), `<dd>`+said+`</dd>`)
	check := document(t, r)["checks"].([]any)[i].(map[string]any)
	require.Equal(t, []any{map[string]any{"measure": "neuron_z", "value": *failed.NeuronZ, "limit": 6.0}}, check["failed"])
}

// TestEveryFailureSaysWhy: each failed check has a measure beyond its limit, or a reason, and no
// other check has one.
func TestEveryFailureSaysWhy(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v1-base/golden-f32", "v3/golden-bf16"} {
		for _, mode := range []report.Mode{report.Local, report.Chained} {
			c, p := open(t, golden)
			for _, r := range []*report.Report{
				run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{Undiagnosed: true, Mode: mode}),
				run(t, override(t, c.Config, "num_experts_per_tok", "2"), c, p, verify.Options{Undiagnosed: true, Mode: mode}),
			} {
				for _, c := range r.Checks {
					require.Equal(t, c.Verdict == report.Fail, len(c.Failed) > 0 || c.Verdict == report.Fail && c.Reason != "", c.Tensor)
					for _, m := range c.Failed {
						require.True(t, m.Value == nil || *m.Value > m.Limit, c.Tensor)
					}
				}
			}
		}
	}
}

// TestChangedReportsCanBeWritten_every: a report that was changed in one place is refused by a merge, or can be written.
func TestChangedReportsCanBeWritten_every(t *testing.T) {
	c, p := open(t, "v3/golden-f32")
	tensors := map[string]tensor.Tensor{}
	const name = "model.layers.1.self_attn.o_proj.weight"
	w := must(c.Tensor(name))
	tensors[name] = halved(w)
	r := run(t, c.Config, altered{Source: c, tensors: tensors}, p, verify.Options{})
	require.NotNil(t, r.FirstDivergence)
	first := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Verdict == report.Fail })
	r.Checks = r.Checks[first : first+2]
	r, _, err := verify.Merge([]*report.Report{r})
	require.NoError(t, errors.Join(err, verify.Unmergeable(r)))
	pattern := r.Checks[0].Pattern
	pattern.Cells = [][]*float64{pattern.Cells[0][:2], pattern.Cells[1][:2]} // which is quick to draw
	written, changes := 0, 0
	change(reflect.ValueOf(r).Elem(), func() {
		if changes++; changes%3 > 0 && !configtest.Every(t) {
			return
		}
		if verify.Unmergeable(r) == nil {
			written++
			require.NoError(t, errors.Join(r.WriteText(io.Discard), r.WriteJUnit(io.Discard, report.About{}),
				r.WriteHTML(io.Discard, report.About{})))
		}
	})
	require.Greater(t, written, 100)
}

// change changes one part of v at a time, and calls f: slices get longer and shorter, pointers nil, numbers and texts
// others.
func change(v reflect.Value, f func()) {
	set := func(to reflect.Value) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(to)
		f()
		v.Set(was)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				change(v.Field(i), f)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			set(reflect.Zero(v.Type()))
			change(v.Elem(), f)
		}
	case reflect.Slice:
		if v.Len() > 0 {
			set(v.Slice(0, v.Len()-1))
			set(v.Slice(0, 0))
			change(v.Index(v.Len()-1), f)
		}
		set(reflect.Append(v.Slice3(0, v.Len(), v.Len()), reflect.Zero(v.Type().Elem())))
		for i := range min(2, v.Len()) {
			change(v.Index(i), f)
		}
	case reflect.Int, reflect.Int64:
		for _, n := range []int64{-1, 1 << 40} {
			set(reflect.ValueOf(n).Convert(v.Type()))
		}
	case reflect.Float64:
		for _, x := range []float64{-1, 1e300} {
			set(reflect.ValueOf(x))
		}
	case reflect.Bool:
		set(reflect.ValueOf(!v.Bool()))
	case reflect.String:
		for _, s := range []string{"", "model.layers.99.mlp.output"} {
			set(reflect.ValueOf(s).Convert(v.Type()))
		}
	}
}
