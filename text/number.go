package text

import (
	"fmt"
	"strconv"
)

// Grouped returns a number with commas between groups of three digits: "16,375,728,128".
func Grouped[T ~int | ~int64](n T) string { return GroupDigits(strconv.FormatInt(int64(n), 10)) }

// GroupDigits is Grouped for a number of any size in decimal digits.
func GroupDigits(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Plural returns a count and a noun, with an "s" unless the count is one: "1 file",
// "5,466 tensors".
func Plural[T ~int | ~int64](n T, noun string) string { return Grouped(n) + " " + Noun(n, noun) }

// Noun returns the noun of Plural, for a count that is written otherwise.
func Noun[T ~int | ~int64](n T, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return noun
}

// Bytes returns a size in the largest binary unit that it fills: "512 B", "30.50 GiB".
func Bytes(n int64) string {
	return scaled(float64(n), 1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
}

// ExactBytes is Bytes with the exact number, for sizes that readers compare:
// "5.29 MiB (5,551,376 bytes)"; "512 bytes".
func ExactBytes(n int64) string {
	if -1024 < n && n < 1024 {
		return Plural(n, "byte")
	}
	return fmt.Sprintf("%s (%s)", Bytes(n), Plural(n, "byte"))
}

// FLOP returns a number of floating point operations in the largest decimal unit that it
// fills: "5.24 GFLOP".
func FLOP(n float64) string {
	return scaled(n, 1000, "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
}

// scaled returns v in the largest unit that it fills; each unit is step times the unit before.
func scaled(v, step float64, units ...string) string {
	i := 0
	for ; v >= step && i < len(units)-1; i++ {
		v /= step
	}
	if i == 0 {
		return fmt.Sprintf("%.0f %s", v, units[0])
	}
	return fmt.Sprintf("%.2f %s", v, units[i])
}

// Percent returns 100 · part / whole with two decimals, "17.27 %"; "-" if whole is 0.
func Percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}
