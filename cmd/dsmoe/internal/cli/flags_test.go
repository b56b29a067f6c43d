package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text"
)

// flagValue is what all flags with a text of their own are.
type flagValue interface {
	Set(word string) error
	String() string
	Type() string
}

// TestFlagValues: what each flag reads, what it then says of itself, and what it refuses.
func TestFlagValues(t *testing.T) {
	for name, c := range map[string]struct {
		flag   func() flagValue
		reads  map[string]string // to what the flag then says
		refuse []string
	}{
		"dtype": {func() flagValue { return TypeFlag(new(WeightType)) },
			map[string]string{"keep": "keep", "f32": "F32", "f16": "F16", "bf16": "BF16", "F32": "F32", "fp32": "F32", "float32": "F32", "torch.float32": "F32",
				"fp16": "F16", "float16": "F16", "half": "F16", "bfloat16": "BF16", "torch.bfloat16": "BF16", "fp8": "fp8", "FP8": "fp8", "q3_k": "q3_k_m", "Q4_K": "q4_k_m", "q5_k": "q5_k_m", "q6_k": "q6_k"}, []string{"", "Keep", "f64", "double", "q8", "fp16x"}},
		"shard": {func() flagValue { return ShardFlag(new(int64)) },
			map[string]string{"none": "none", "5GB": "5GB", "2GiB": "2GiB", "1500001": "1500001B"}, []string{"", "0", "None", "-1", "x"}},
		"layers": {func() flagValue { return SpansFlag(new(text.Spans), "layers") },
			map[string]string{"0-3,7": "0-3,7", "1, 2-2": "1,2", "5": "5"}, []string{"", "3-1", "a"}},
		"limit": {func() flagValue { return Limits{} },
			map[string]string{"mlp.output=1e-5": "mlp.output=1e-05", "a=2": "a=2"}, []string{"", "a", "a=", "=1", "a=0", "a=-1", "a=NaN", "a=Inf"}},
		"dtype choice": {func() flagValue { word := "f64"; return WordFlag(&word, "f64", "f32") },
			map[string]string{"f64": "f64", "float64": "f64", "double": "f64", "fp32": "f32", "F32": "f32"}, []string{"", "f16", "float"[:3]}},
		"seed": {func() flagValue { return numberOf(new(uint64)) },
			map[string]string{"010": "10", "7": "7", "0x1F": "31", "0X1f": "31", "18446744073709551615": "18446744073709551615"},
			[]string{"", "0o10", "0b1", "1_000", "-1", "1f", "0x", "1e3", "+1", "18446744073709551616"}},
		"numbers": {func() flagValue { return &numbers{to: &[]int{3}} },
			map[string]string{"1": "1", "4096, 1": "4096,1"}, []string{"", "8k", "1,", "-1"}},
		"number": {func() flagValue { return numberOf(new(int)) },
			map[string]string{"010": "10", "0": "0"}, []string{"", "-1", "9223372036854775808"}},
		"choice": {func() flagValue { word := "local"; return WordFlag(&word, "local", "chained") },
			map[string]string{"local": "local", "chained": "chained"}, []string{"", "Local"}},
	} {
		for word, want := range c.reads {
			v := c.flag()
			require.NoError(t, v.Set(word), "%s %q", name, word)
			require.Equal(t, want, v.String(), name)
			require.NotEmpty(t, v.Type(), name)
		}
		before := c.flag().String()
		for _, word := range c.refuse {
			v := c.flag()
			require.Error(t, v.Set(word), "%s %q", name, word)
			require.Equal(t, before, v.String(), "%s %q", name, word)
		}
	}
	l := Limits{}
	require.NoError(t, l.Set("b=1"))
	require.NoError(t, l.Set("a=2"))
	require.Equal(t, "a=2,b=1", l.String())
}

// TestNear: a wrong word is asked about where another begins like it.
func TestNear(t *testing.T) {
	for word, want := range map[string]string{"q4km": "q4_k_m", "Q4_K_XL": "q4_k_s or q4_k_m", "q8": "q8_0", "bf61": "bf16",
		"Q5-K-M": "q5_k_m", "iq4-xs": "iq4_xs", "nvfp4": "", "x": "", "": "", "q": ""} {
		asked := near(word, typeWords())
		if want != "" {
			want = ": is it " + want + "?"
		}
		assert.Equal(t, want, asked, word)
	}
	n := numbers{to: &[]int{7}}
	assert.EqualError(t, n.Set("1,8k"), `8k is not a whole number: is it 8192?`)
	require.NoError(t, n.Set("1"))
	require.NoError(t, n.Set("2,3"))
	assert.Equal(t, []int{1, 2, 3}, *n.to)
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{
		"5GB": 5e9, "500MB": 5e8, "2GiB": 2 << 30, "1KiB": 1024, "1000000": 1e6, "7B": 7, "3 TB": 3e12, "1TiB": 1 << 40,
		"5G": 5e9, "5g": 5e9, "5gb": 5e9, "5Gi": 5 << 30, "512mib": 512 << 20, "1.5GB": 15e8, "1.1GB": 11e8, "1.5GiB": 3 << 29, "0.5K": 500, "01000000": 1e6, "1000000.5": 1e6, "1.5B": 1,
	} {
		size, err := parseSize(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, size, text)
	}
	for _, text := range []string{"", "GB", "0", "-1", "5Gb", "5Gib", "5 XB", "0.1", "1.2.3GB", "1e3", "1/2GB", "0x10", ".", "5iB", "G5", "5", "1.5", "999999", "9999999999TiB", "99999999999TiB", "99999999999999999999"} {
		_, err := parseSize(text)
		assert.Error(t, err, text)
	}
	for size, want := range map[int64]string{5e9: "5GB", 1 << 30: "1GiB", 1500: "1500B", 0: "0"} {
		assert.Equal(t, want, showSize(size))
	}
}
