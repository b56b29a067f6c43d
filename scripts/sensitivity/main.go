// Command sensitivity counts which wrong weights a verification sees: it changes one random
// element of one weight at a time, by one unit of BF16 or to its double, verifies, and prints
// the share of each kind that failed and, of one unit, the share that is visible: that changes
// any bit of a stage. The checkpoint's weights are BF16 or F32, whose upper half is a BF16 number,
// and it passes.
//
//	go run ./scripts/sensitivity [-n 200] [-seed 1] [-only SUBSTRING] CHECKPOINT GOLDEN
//
// Experts are those that some token reached, rows of the embedding those that the input
// reads: nothing else can be seen.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

func main() {
	log.SetFlags(0)
	n := flag.Int("n", 200, "faults of each kind")
	seed := flag.Uint64("seed", 1, "of the choice of elements")
	only := flag.String("only", "", "kinds whose name contains this")
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		log.Fatal("CHECKPOINT and GOLDEN are expected")
	}
	s, err := newStudy(flag.Arg(0), flag.Arg(1))
	if err != nil {
		log.Fatal(err)
	}
	defer s.checkpoint.Close()
	fmt.Printf("%s, %s; %d faults of each kind, seed %d\n\n", flag.Arg(0), flag.Arg(1), *n, *seed)
	fmt.Println("| weight | one unit | visible | doubled |\n|---|---|---|---|")
	for _, kind := range s.kinds {
		if !strings.Contains(kind, *only) {
			continue
		}
		small, visible, err := s.count(kind, *n, *seed, oneUnit)
		if err != nil {
			log.Fatal(err)
		}
		large, _, err := s.count(kind, *n, *seed, doubled)
		if err != nil {
			log.Fatal(err)
		}
		percent := func(count int64) float64 { return 100 * float64(count) / float64(*n) }
		fmt.Printf("| %s | %.1f %% | %.1f %% | %.1f %% |\n", kind, percent(small), percent(visible), percent(large))
	}
}

// oneUnit and doubled change the pattern of a BF16 number, or of the upper half of an F32 number.
func oneUnit(p uint16) uint16 { return p + 1 }
func doubled(p uint16) uint16 { return p + 1<<7 }

// study is a checkpoint with its pack, and the weights that can be seen, by kind.
type study struct {
	checkpoint *checkpoint.Checkpoint
	golden     string
	right      []report.Check // of the checkpoint as it is
	kinds      []string       // in the order of the table
	weights    map[string][]string
	ids        []int // rows of the embedding that the input reads
}

func newStudy(path, golden string) (*study, error) {
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	s := &study{checkpoint: c, golden: golden, weights: map[string][]string{}}
	p, err := pack.Open(golden)
	if err != nil {
		return nil, err
	}
	if s.ids, err = p.Ints("input_ids"); err != nil {
		return nil, err
	}
	r, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{})
	if err != nil {
		return nil, err
	}
	if r.Verdict != report.Pass {
		return nil, fmt.Errorf("%s: %s: nothing can be learnt from changes to it", path, r.Verdict)
	}
	s.right = r.Checks
	unreached := map[string][]int{}
	for _, l := range r.Coverage.Unreached {
		unreached[l.Layer] = l.Experts
	}
	for slot := range table.FamilyOf(c.Config).Slots(c.Config) {
		layer := fmt.Sprintf("model.layers.%d", slot.Layer)
		kind := slot.Row.InLayer()
		if slot.Module() == table.DenseMLP {
			kind += " (dense)"
		}
		if slot.Expert >= 0 && slices.Contains(unreached[layer], slot.Expert) {
			continue
		}
		if !slices.Contains(s.kinds, kind) {
			s.kinds = append(s.kinds, kind)
		}
		s.weights[kind] = append(s.weights[kind], slot.Name)
	}
	return s, nil
}

// count returns how many of n faults of a kind fail, and how many change a bit of what is
// recomputed. Fault i depends on the seed, the kind and i.
func (s *study) count(kind string, n int, seed uint64, change func(uint16) uint16) (caught, visible int64, err error) {
	var failed, seen atomic.Int64
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			faulty, err := s.fault(r, kind, change)
			if err != nil {
				return err
			}
			p, err := pack.Open(s.golden) // a pack holds one file at a time
			if err != nil {
				return err
			}
			o := verify.Options{Parallelism: 1, Undiagnosed: true}
			got, err := verify.Run(context.Background(), s.checkpoint.Config, faulty, p, o)
			if err != nil {
				return err
			}
			if got.Verdict == report.Fail {
				failed.Add(1)
			}
			if !slices.EqualFunc(got.Checks, s.right, sameDistance) {
				seen.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	return failed.Load(), seen.Load(), err
}

// sameDistance says whether two results are as far from their golden.
func sameDistance(a, b report.Check) bool {
	return a.Verdict == b.Verdict && (a.RelRMS == nil) == (b.RelRMS == nil) && (a.RelRMS == nil || *a.RelRMS == *b.RelRMS)
}

// faulty is a source with one tensor replaced.
type faulty struct {
	weights.Source
	name string
	w    tensor.Tensor
}

// Tensor implements weights.Source.
func (f *faulty) Tensor(name string) (tensor.Tensor, error) {
	if name == f.name {
		return f.w, nil
	}
	return f.Source.Tensor(name)
}

// fault changes one element, not zero, of a weight of the kind.
func (s *study) fault(r *rand.Rand, kind string, change func(uint16) uint16) (*faulty, error) {
	name := s.weights[kind][r.IntN(len(s.weights[kind]))]
	w, err := s.checkpoint.Tensor(name)
	if err != nil {
		return nil, err
	}
	size := map[tensor.DType]int{tensor.BF16: 2, tensor.F32: 4}[w.DType]
	if size == 0 {
		return nil, fmt.Errorf("%s: dtype %s, not BF16 or F32", name, w.DType)
	}
	w.Data = slices.Clone(w.Data)
	for {
		i := r.IntN(w.Len())
		if kind == "model.embed_tokens.weight" {
			i = s.ids[r.IntN(len(s.ids))]*w.Shape[1] + r.IntN(w.Shape[1])
		}
		upper := w.Data[(i+1)*size-2:]
		if p := binary.LittleEndian.Uint16(upper); p&0x7fff != 0 {
			binary.LittleEndian.PutUint16(upper, change(p))
			return &faulty{s.checkpoint, name, w}, nil
		}
	}
}
