package cli

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// ShardFlag is a flag that takes a size or none, -1; 0 is what the format is used to.
func ShardFlag(to *int64) Value[int64] {
	parse := func(word string) (int64, error) {
		if word == "none" {
			return -1, nil
		}
		return parseSize(word)
	}
	show := func(size int64) string {
		switch {
		case size < 0:
			return "none"
		case size == 0:
			return ""
		}
		return showSize(size)
	}
	return Value[int64]{to, "size", parse, show, []string{"5GB", "none"}}
}

// SizeFlag is a flag that takes a number of bytes.
func SizeFlag(to *int64) Value[int64] { return Value[int64]{to, "size", parseSize, showSize, nil} }

// units are the units of sizes, the largest first: decimal as Hugging Face counts (1GB, or 1G, is 10^9), or
// binary (1GiB, or 1Gi, is 2^30).
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	{"B", 1},
}

// showSize returns a size in the first unit that it is a multiple of.
func showSize(size int64) string {
	for _, u := range units {
		if size > 0 && size%u.bytes == 0 {
			return strconv.FormatInt(size/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(size, 10)
}

// parseSize reads a size: 5GB, 5G, 5gb, 1.5GiB, 5000000. A small b behind a large prefix is refused: Hugging Face takes
// 5Gb for bits. What is less than a byte is dropped. Less than leastPlain has a unit: 5 is hardly 5 bytes.
func parseSize(word string) (int64, error) {
	digits := strings.TrimRight(word, "TGMKBtgmkbi ")
	name := strings.TrimLeft(word[len(digits):], " ")
	bits := strings.HasSuffix(name, "b") && name != strings.ToLower(name)
	full := strings.TrimSuffix(strings.ToUpper(name), "B") + "B"
	unit := int64(0)
	for _, u := range units {
		if strings.ToUpper(u.name) == full {
			unit = u.bytes
		}
	}
	n, isNumber := new(big.Rat).SetString(digits)
	if bits || unit == 0 || !isNumber || strings.Trim(digits, "0123456789.") != "" {
		return 0, errNoSize
	}
	n.Mul(n, new(big.Rat).SetInt64(unit))
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if whole.Sign() <= 0 || whole.BitLen() > 62 {
		return 0, errNoSize
	}
	if name == "" && whole.Int64() < leastPlain {
		return 0, fmt.Errorf("has no unit: write %sB for bytes, or KB, MB, GB in place of B", word)
	}
	return whole.Int64(), nil
}

// leastPlain is the least number of bytes that needs no unit: shards and memory have more.
const leastPlain = 1_000_000

var errNoSize = errors.New("not a size such as 5GB, 1.5GiB or 500MB")
