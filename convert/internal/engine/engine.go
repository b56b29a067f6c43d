// Package engine carries a plan out. Run writes every tensor in tiles under a limit of
// memory, tells a journal what is durable, reads the output again and compares it with the
// source, binds everything in a manifest, and renames: the output is complete, or not
// there. Check compares an output with its manifest again.
package engine

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// Source reads what a plan's segments name. It is safe for concurrent use.
type Source interface {
	// ReadFile fills dst from a weight file, an index in Plan.Sources.
	ReadFile(file int, dst []byte, offset int64) error
	// OpenOther opens a file without weights that is carried along.
	OpenOther(name string) (fs.File, error)
	// Key names the state that the source is in. Two states must not be mixed in one
	// output.
	Key() (string, error)
}

// Settings are how a plan is carried out. They decide no byte of the output's weights.
type Settings struct {
	Memory     int64 // bytes to stay below; 0 is 512 MiB
	Compute    int   // goroutines that cast, hash and compare at once; 0 is GOMAXPROCS
	IO         int   // goroutines that read and write, each a tensor at a time; 0 is DefaultIO
	Unverified bool  // do not read the output again and compare it with the source
	StartOver  bool  // do not go on from an unfinished output
	KeepLosses bool  // write numbers that became infinite or zero in a cast

	Tool     string                          // name and version of the program, for the manifest
	Progress func(phase string, n, of int64) // told of bytes as they are done, one call at a time; nil is nobody
	Disk     *disk.Disk                      // nil is the real one
}

// The limits of Settings.Memory.
const (
	DefaultMemory = 512 << 20
	MinMemory     = 64 << 20
)

// DefaultIO is how many tensors are on their way to or from the disk at once.
const DefaultIO = 16

func (s Settings) withDefaults() Settings {
	if s.Memory == 0 {
		s.Memory = DefaultMemory
	}
	if s.Compute == 0 {
		s.Compute = runtime.GOMAXPROCS(0)
	}
	if s.IO == 0 {
		s.IO = DefaultIO
	}
	if s.Progress == nil {
		s.Progress = func(string, int64, int64) {}
	}
	if s.Disk == nil {
		s.Disk = &disk.Disk{}
	}
	return s
}

// Check says what is wrong with the settings.
func (s Settings) Check() error {
	if s.Memory != 0 && s.Memory < MinMemory {
		return fmt.Errorf("%d bytes of memory are too few: %d are the least", s.Memory, MinMemory)
	}
	return nil
}

// Result is what Run did.
type Result struct {
	Already bool         // the target was the finished output of this plan, and still is
	Resumed int64        // bytes that an earlier, interrupted run had written
	Lost    []LostTensor // tensors that a cast could not keep whole
}

// LostTensor says how many elements of a tensor a cast could not keep.
type LostTensor struct {
	Name string `json:"name"` // of the tensor
	tensor.Loss
}

// LossError refuses an output whose casts made numbers infinite or zero.
type LossError struct {
	Tensors []LostTensor // at least one
}

// Error names the first tensors and counts the rest.
func (e *LossError) Error() string {
	problems := make([]checkpoint.Problem, len(e.Tensors))
	for i, t := range e.Tensors {
		problems[i] = checkpoint.Problem{Tensor: t.Name, Cause: fmt.Sprintf("%d elements would become infinite, %d zero", t.Overflow, t.Flushed)}
	}
	return (&checkpoint.Error{Path: "cast", Problems: problems}).Error()
}

// Run writes the plan's output to a new directory dst, an absolute path, which must not
// exist or be empty. It is assembled in a hidden directory beside dst. An interrupted run,
// however it ended, leaves that and a journal; the same call goes on from there and gives
// the same bytes. If dst is the finished output of the same plan, Run checks it against
// its manifest and reports so.
func Run(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	s = s.withDefaults()
	if done, err := alreadyDone(ctx, dst, p, src, s); done || err != nil {
		return &Result{Already: true}, err
	}
	e := newExecution(dst, p, src, s)
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.close()
	r := &Result{Resumed: e.done}
	if err := e.write(ctx); err != nil {
		return nil, err
	}
	r.Lost = e.lost()
	if len(r.Lost) > 0 && !s.KeepLosses {
		return nil, &LossError{r.Lost}
	}
	if !s.Unverified {
		if err := e.prove(ctx); err != nil {
			return nil, err
		}
	}
	return r, e.commit(ctx)
}

// alreadyDone says whether dst is the finished output of the plan. If it is, but
// was changed since, that is an error.
func alreadyDone(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (bool, error) {
	m, err := readManifest(filepath.Join(dst, plan.ManifestName))
	if err != nil || m.Plan != p.Hash {
		return false, nil
	}
	problems, err := checkManifest(ctx, dst, m, s)
	if err != nil {
		return false, err
	}
	if len(problems) > 0 {
		return false, &checkpoint.Error{Path: dst, Problems: append([]checkpoint.Problem{{Cause: "is the output of this very conversion, but was changed since"}}, problems...)}
	}
	if err := checkCarried(dst, m.Others, src); err != nil {
		return false, err
	}
	j, err := lockJournal(s.Disk, journalName(dst)) // an orphan, if the last run died just before its end
	if err != nil {
		return true, nil
	}
	defer j.f.Close()
	return true, s.Disk.Remove(journalName(dst))
}

// partialName and journalName are what an unfinished run leaves beside its target:
// hidden, and never mistaken for a checkpoint.
func partialName(dst string) string {
	return filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".partial")
}

func journalName(dst string) string {
	return filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".journal")
}
