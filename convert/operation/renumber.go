package operation

import (
	"encoding/binary"
	"fmt"
	"slices"

	"dsmoe/model/tensor"
)

// Renumber stores a table of experts, I64, of a model that keeps some of them under new numbers. The entry of an expert
// that is not kept becomes the next kept expert, cyclically, that the row has neither from the source nor for an
// earlier entry.
type Renumber struct {
	Experts int          `json:"experts"` // of the source
	Kept    []int        `json:"kept"`    // source's numbers of the output's experts, ascending
	Row     int          `json:"row"`     // entries of a row, at most as many as there are kept experts
	To      tensor.DType `json:"to"`      // I64 or I32
}

// Name returns "renumber experts", and the dtype if it is another.
func (r *Renumber) Name() string {
	if r.To == tensor.I64 {
		return "renumber experts"
	}
	return "renumber experts " + r.To.String()
}

// Unit returns a row.
func (r *Renumber) Unit() unit { return unit{r.Row, 8 * r.Row, int(r.To.Bytes(int64(r.Row)))} }

// eachRow calls do for every row of the source: the index of its first element in the piece, and its entries.
func (r *Renumber) eachRow(in Input, do func(at int, row []int) error) error {
	row := make([]int, r.Row)
	for at := 0; at < len(in.Data)/8; at += r.Row {
		for i := range row {
			e := int64(binary.LittleEndian.Uint64(in.Data[8*(at+i):]))
			if e < 0 || e >= int64(r.Experts) {
				return fmt.Errorf("element %d is %d, which is not one of %d experts", in.Into+int64(at+i), e, r.Experts)
			}
			row[i] = int(e)
		}
		if err := do(at, row); err != nil {
			return err
		}
	}
	return nil
}

// Apply writes every row, and counts the entries of experts that are not kept.
func (r *Renumber) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	return r.eachRow(in, func(at int, row []int) error {
		taken := slices.Clone(row)
		for i, e := range row {
			n, kept := slices.BinarySearch(r.Kept, e)
			if !kept {
				lost.Replaced++
				for n %= len(r.Kept); slices.Contains(taken, r.Kept[n]); {
					n = (n + 1) % len(r.Kept)
				}
				taken = append(taken, r.Kept[n])
			}
			if r.To == tensor.I32 {
				binary.LittleEndian.PutUint32(dst[4*(at+i):], uint32(n))
			} else {
				binary.LittleEndian.PutUint64(dst[8*(at+i):], uint64(n))
			}
		}
		return nil
	})
}

// Prove demands that each entry names the source's expert if that is kept; else an expert that the row does not have,
// such that the row has all kept experts that lie between the two.
func (r *Renumber) Prove(out []byte, in Input) error {
	return r.eachRow(in, func(at int, row []int) error {
		had := map[int]bool{}
		for _, e := range row {
			had[e] = true
		}
		for i, e := range row {
			n := int64(0)
			if r.To == tensor.I32 {
				n = int64(int32(binary.LittleEndian.Uint32(out[4*(at+i):])))
			} else {
				n = int64(binary.LittleEndian.Uint64(out[8*(at+i):]))
			}
			if n < 0 || n >= int64(len(r.Kept)) {
				return &Mismatch{at + i, fmt.Sprint(n), fmt.Sprintf("one of %d experts", len(r.Kept))}
			}
			want := e // or, counting up, the next kept one that the row does not have
			if !slices.Contains(r.Kept, e) {
				for want = (e + 1) % r.Experts; had[want] || !slices.Contains(r.Kept, want); {
					want = (want + 1) % r.Experts
				}
				had[want] = true
			}
			if got := r.Kept[n]; got != want {
				return &Mismatch{at + i, fmt.Sprintf("%d for expert %d", n, got), fmt.Sprintf("expert %d", want)}
			}
		}
		return nil
	})
}
