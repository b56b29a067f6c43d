package tensor

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestForms: every dtype has a form, and what a form with scales says of names and shapes is one.
func TestForms(t *testing.T) {
	for d := Invalid; int(d) < len(dtypes); d++ {
		f := d.Form()
		require.Equal(t, d.Blocked(), f == selfScaled, d)
		require.Equal(t, d.Scaled(), f.Codes == d && d != Invalid, d)
	}
	require.Equal(t, FP8, FormOf("fp8"))
	require.Equal(t, Plain, FormOf(""))

	all := FP8.Tensors("x.weight", []int{300, 130}, BF16, [2]int{128, 64})
	require.Equal(t, []Info{{"x.weight", F8E4M3, []int{300, 130}}, {"x.weight_scale_inv", F32, []int{3, 3}}}, all)
	headers := func(infos []Info) headers {
		return func(name string) (Info, bool) {
			i := slices.IndexFunc(infos, func(info Info) bool { return info.Name == name })
			return append(infos, Info{})[max(i, 0)], i >= 0
		}
	}
	for i, info := range all {
		_, part, _, _ := PartOf(info, headers(all), nil, 0)
		require.Equal(t, info.Name, "x.weight"+part)
		require.Equal(t, i == 0, part == "")
	}
	for _, f := range []*Form{awq, gptq} {
		all := f.Tensors("x.weight", []int{64, 128}, BF16, [2]int{1, 32})
		for i, info := range all {
			got, part, form, places := PartOf(info, headers(all), f, 0)
			require.Equal(t, info.Name, f.PartName("x.weight", part))
			require.Equal(t, "x.weight"+part, got.Name)
			require.Equal(t, part != OrderPart, places != nil && places.Bytes() == info.Bytes())
			if i == 0 {
				require.Equal(t, f, form)
				require.Equal(t, Info{"x.weight", INT4, []int{64, 128}}, got)
			}
		}
	}
	require.Equal(t, []Info{{"x.weight", BF16, []int{3}}}, Plain.Tensors("x.weight", []int{3}, BF16, [2]int{}))
}

// TestNearestIsTheInverseOfValues, for every code that is a number.
func TestNearestIsTheInverseOfValues(t *testing.T) {
	for _, f := range scaled {
		if f.Nearest == nil {
			continue
		}
		codes := make([]byte, 256)
		for i := range codes {
			codes[i] = byte(i)
		}
		values := make([]float64, len(codes))
		f.Values(values, codes, 0)
		for code, v := range values {
			if v == v {
				require.Equal(t, byte(code), f.Nearest(float32(v)), f.Name)
			}
		}
	}
}
