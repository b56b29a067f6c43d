package tensor

import "dsmoe/model/internal/kernel"

// ExtremesOf returns the extremes of fewer than 2³² numbers; Least and Most of none are 0.
func ExtremesOf(x []float32) kernel.Extremes { return kernel.ExtremesOf(x) }

// Runs is how many runs of numbers Moments and Powers add up side by side.
const Runs = kernel.Runs

// Moments sets means and squares to the mean and Σ(x - mean)² of each of the Runs runs that x consists of, in float64,
// added up in the order of the numbers.
func Moments(means, squares *[Runs]float64, x []float32) { kernel.Moments(means, squares, x) }

// Powers sets squares and fourths to Σx² and Σx⁴ of each of the Runs runs that x consists of, in float64, added up in the
// order of the numbers; x⁴ is that of x² rounded to float32. It leaves x² in x.
func Powers(squares, fourths *[Runs]float64, x []float32) { kernel.Powers(squares, fourths, x) }
