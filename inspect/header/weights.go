package header

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/count"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// Held is the bytes of one dtype that weights of a module take.
type Held struct {
	Module table.Module
	DType  tensor.DType
	Bytes  int64
}

// weightBytes is what the weights of a model take, multi-token prediction layers left out.
type weightBytes struct {
	From   string       `json:"from"`   // "config", "files", or the command that would write them
	Bytes  int64        `json:"bytes"`  // of all of them
	DTypes []dtypeBytes `json:"dtypes"` // most bytes first
}

// dtypeBytes is the bytes of one dtype.
type dtypeBytes struct {
	DType tensor.DType `json:"dtype"` // of the stored elements
	Bytes int64        `json:"bytes"` // of all of them
}

// Where the bytes of weights are known from.
const (
	fromConfig = "config" // torch_dtype, or BF16 without one, and quantization_config
	FromFiles  = "files"  // their headers
)

// Weights are the weights of a model, and where that is known from. The zero value stands for
// what the config says.
type Weights struct {
	Held []Held
	From string
}

// or returns w, or else what c says: torch_dtype, and the stored forms of quantization_config.
func (w Weights) or(c *config.Config) Weights {
	if w.From != "" {
		return w
	}
	w.From = fromConfig
	for module, info := range table.FamilyOf(c).Implied(c) {
		w.Held = append(w.Held, Held{module, info.DType, info.Bytes()})
	}
	return w
}

// sum adds up all weights but those of the prediction layers.
func (w Weights) sum() weightBytes {
	b := weightBytes{From: w.From, DTypes: []dtypeBytes{}}
	for _, h := range w.Held {
		if h.Module == table.MTP {
			continue
		}
		i := slices.IndexFunc(b.DTypes, func(d dtypeBytes) bool { return d.DType == h.DType })
		if i < 0 {
			i, b.DTypes = len(b.DTypes), append(b.DTypes, dtypeBytes{DType: h.DType})
		}
		b.DTypes[i].Bytes += h.Bytes
		b.Bytes += h.Bytes
	}
	slices.SortStableFunc(b.DTypes, func(x, y dtypeBytes) int { return cmp.Compare(y.Bytes, x.Bytes) })
	return b
}

// moduleMemory is the weights of one module over all layers.
type moduleMemory struct {
	Module string `json:"module"` // a table.Module
	Bytes  int64  `json:"bytes"`  // as weightBytes.From says, scales included
}

// modules adds the weights up by module, in the order of the table, prediction layers last.
func (w Weights) modules(c *config.Config) []moduleMemory {
	bytes := map[table.Module]int64{}
	for _, h := range w.Held {
		bytes[h.Module] += h.Bytes
	}
	sums := []moduleMemory{}
	for _, x := range append(count.Modules(c), count.Total{Module: table.MTP}) {
		if n := bytes[x.Module]; n > 0 {
			sums = append(sums, moduleMemory{string(x.Module), n})
		}
		delete(bytes, x.Module)
	}
	rest := int64(0)
	for _, n := range bytes {
		rest += n
	}
	if rest > 0 {
		sums = append(sums, moduleMemory{"other", rest})
	}
	return sums
}

// String returns "in F8_E4M3, BF16, F32, by the config".
func (b weightBytes) String() string {
	by := b.From
	if by == fromConfig || by == FromFiles {
		by = "the " + by
	}
	return fmt.Sprintf("in %s, by %s", cmp.Or(b.names(", "), "no dtype"), by)
}

// assumed says that a torch_dtype is not the config's.
func assumed(is bool) string {
	if is {
		return " (assumed: the config has no torch_dtype)"
	}
	return ""
}

// names joins the dtypes, those of most bytes first: "Q4_K, Q6_K, F32".
func (b weightBytes) names(separator string) string {
	var names []string
	for _, d := range b.DTypes {
		names = append(names, d.DType.String())
	}
	return strings.Join(names, separator)
}
