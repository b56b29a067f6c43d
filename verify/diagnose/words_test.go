package diagnose

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestUnlike: a number reads otherwise than others that it is not.
func TestUnlike(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v      float64
		digits int
		others []float64
		want   string
	}{
		{1.0027, 3, []float64{1}, "1.003"}, {1.0004, 3, []float64{1}, "1.0004"}, {2.5, 3, []float64{1}, "2.5"}, {1, 3, []float64{1}, "1"},
		{.99949, 3, []float64{1, .99948}, "0.99949"}, {-1, 3, []float64{1}, "-1"}, {0, 3, []float64{1}, "0"},
	} {
		require.Equal(t, c.want, unlike(c.v, c.digits, c.others...), "%v", c)
	}
}

// TestFactorsInWords: factors of rows that are nearly 1, of both signs, zero, or alike by chance.
func TestFactorsInWords(t *testing.T) {
	t.Parallel()
	f := &Failure{Model: &model.DeepseekForCausalLM{Config: &config.Config{HiddenSize: 64,
		Router: config.Router{RoutedScalingFactor: 2.5}}},
		Got: &model.Activation{DType: tensor.F32}}
	for _, c := range []struct {
		factors []float64
		err     float64
		want    string
	}{
		{[]float64{1 / 1.0004, 1 / 1.0004, 1 / 1.0004, 1 / 1.0004}, 1e-9, "is 1.0004 times the reference's"},
		{[]float64{.125, .125, .125, .125}, 1e-9, "is 8 (√hidden_size) times the reference's"},
		{[]float64{.12505, .12505, .12505, .12505}, 1e-9, "is 7.997 times the reference's"},
		{[]float64{.4, .4, 1, 1}, 1e-9, "has 2.5 (routed_scaling_factor) times the reference's numbers in rows 0, 1"},
		{[]float64{.5, .5002, 1, 1}, 1e-9, "has other multiples of the reference's numbers in rows 0, 1"},
		{[]float64{1, 0, 0, 1}, 1e-9, "is not zero in rows 1, 2, where the reference's is"},
		{[]float64{-.5, 2, .25, 2}, 1e-9, "is the reference's times a number for each row, from -2 to 4"},
		{[]float64{1 / 1.0004, 1 / 1.0011, 1 / 1.002, 1 / 1.003}, 1e-9, "is the reference's times a number for each row, from 1.0004 to 1.003"},
		{[]float64{.5, .5, .25, .25}, 1e-9, "is the reference's times a number for every 2 rows, from 2 to 4"},
		{[]float64{.5, .5002, .5005, .5007}, 1e-3, "is the reference's times a number for each row, from 1.997 to 2"}, // none is told from the next
	} {
		errors := make([]float64, len(c.factors))
		for i := range errors {
			errors[i] = c.err
		}
		_, words, _ := f.describeFactors(c.factors, errors)
		require.Equal(t, c.want, words)
	}
}
