package convert

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/internal/lanes"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// Report is what a conversion did. It is JSON as it stands.
type Report struct {
	Path       string         `json:"path"`
	Plan       string         `json:"plan"`
	Already    bool           `json:"already_complete"` // dst was the finished output of this plan, and still is
	Resumed    int64          `json:"resumed_bytes"`    // that an earlier, interrupted run had written
	Verified   bool           `json:"verified"`
	Tensors    int            `json:"tensors"`
	Bytes      int64          `json:"bytes"`
	Files      []string       `json:"files"`
	Carried    []string       `json:"carried"`
	Left       []string       `json:"left_behind"`
	Dropped    int            `json:"dropped_tensors"`
	Operations map[string]int `json:"operations"` // tensors per operation
	Lost       []LostTensor   `json:"lost"`
	Notes      []string       `json:"notes"`
}

// LostTensor says how many elements of a tensor a cast could not keep.
type LostTensor struct {
	Name string `json:"name"`
	tensor.Loss
}

// LossError refuses an output whose casts made numbers infinite or zero.
type LossError struct{ Tensors []LostTensor }

// Error names the first tensors and counts the rest.
func (e *LossError) Error() string {
	problems := make([]Problem, len(e.Tensors))
	for i, t := range e.Tensors {
		problems[i] = Problem{Tensor: t.Name, Cause: fmt.Sprintf("%d elements would become infinite, %d zero", t.Overflow, t.Flushed)}
	}
	return (&Error{Path: "cast", Problems: problems}).Error()
}

// Run converts src into a new directory dst, which must not exist or be empty. The
// output is assembled in a hidden directory beside dst and renamed to dst when it is
// complete and, unless NoVerify is set, proven against the source.
//
// An interrupted run, however it ended, leaves that hidden directory and a journal;
// the same call goes on from there and gives the same bytes. If dst is the finished
// output of the same plan, Run checks it against its manifest and reports so.
//
// Run and Check compute on as many processors as GOMAXPROCS said when the program
// began. They are fastest if it is raised before the call, to 8 times that: a goroutine
// in a system call keeps its processor until the scheduler takes it away.
func Run(ctx context.Context, dst string, src *Checkpoint, o Options) (*Report, error) {
	o = o.withDefaults()
	v, err := NewView(src)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	target, err := filepath.Abs(dst)
	if err != nil {
		return nil, err
	}
	if err := checkOverlap(src, target); err != nil {
		return nil, fmt.Errorf("%s: %w", safetensors.Quote(dst), err)
	}
	plan, err := NewPlan(v, o)
	if err != nil {
		return nil, err
	}
	r, err := run(ctx, target, v, plan, o)
	var known *Error
	if errors.As(err, &known) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", safetensors.Quote(dst), err)
	}
	r.Path = dst
	return r, nil
}

func run(ctx context.Context, dst string, v *View, plan *Plan, o Options) (*Report, error) {
	if done, err := alreadyDone(ctx, dst, plan, o); done || err != nil {
		return plan.report(&Report{Already: true, Verified: !o.NoVerify}), err
	}
	e := &execution{plan: plan, view: v, o: o, dir: partialName(dst), pool: lanes.NewPool(processors), changed: map[int]bool{}}
	_, e.total = plan.Bytes()
	e.budget()
	if err := e.begin(dst); err != nil {
		return nil, err
	}
	defer e.close()
	resumed := e.done
	if err := e.work(ctx); err != nil {
		return nil, err
	}
	if err := e.commit(ctx, dst); err != nil {
		return nil, err
	}
	return plan.report(&Report{Resumed: resumed, Verified: !o.NoVerify, Lost: e.lost()}), nil
}

// report fills in what the plan says.
func (p *Plan) report(r *Report) *Report {
	r.Plan, r.Tensors, r.Dropped, r.Left, r.Notes = p.Hash, len(p.Tensors), p.Dropped, p.Left, p.Notes
	_, r.Bytes = p.Bytes()
	r.Files, r.Carried, r.Operations = []string{}, []string{}, map[string]int{}
	for _, f := range p.Files {
		r.Files = append(r.Files, f.Name)
	}
	for _, f := range p.Others {
		if f.Carried {
			r.Carried = append(r.Carried, f.Name)
		}
	}
	for _, t := range p.Tensors {
		for _, op := range t.Operations {
			r.Operations[op]++
		}
	}
	if r.Lost == nil {
		r.Lost = []LostTensor{}
	}
	return r
}

// checkOverlap refuses a target that is the source, or inside it.
func checkOverlap(src *Checkpoint, dst string) error {
	stat, err := os.Stat(src.Path)
	if err != nil || !stat.IsDir() {
		return err
	}
	for dir := dst; ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return checkAncestors(stat, real, dir == dst)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// checkAncestors looks for the source among dir and the directories it is in.
func checkAncestors(source os.FileInfo, dir string, isTarget bool) error {
	for first := true; ; first = false {
		if stat, err := os.Stat(dir); err == nil && os.SameFile(stat, source) {
			if first && isTarget {
				return errors.New("is the source itself")
			}
			return errors.New("is inside the source")
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// alreadyDone says whether dst is the finished output of the plan. If it is, but
// was changed since, that is an error.
func alreadyDone(ctx context.Context, dst string, plan *Plan, o Options) (bool, error) {
	m, err := readManifest(filepath.Join(dst, manifestName))
	if err != nil || m.Plan != plan.Hash {
		return false, nil
	}
	problems, err := checkManifest(ctx, dst, m, o.Progress)
	if err != nil {
		return false, err
	}
	if len(problems) > 0 {
		return false, &Error{Path: dst, Problems: append([]Problem{{Cause: "is the output of this very conversion, but was changed since"}}, problems...)}
	}
	j, err := lockJournal(o.disk, journalName(dst)) // an orphan, if the last run died just before its end
	if err != nil {
		return true, nil
	}
	defer j.f.Close()
	return true, o.disk.remove(journalName(dst))
}

// begin locks the target, takes up an unfinished conversion of the same plan, or
// lays out a new one.
func (e *execution) begin(dst string) (err error) {
	if _, err := os.Stat(filepath.Dir(dst)); errors.Is(err, fs.ErrNotExist) {
		return errors.New("the directory to write it in does not exist")
	}
	if err := checkTarget(dst); err != nil {
		return err
	}
	if e.codecs, err = newCodecs(e.plan); err != nil {
		return err
	}
	if e.journal, err = lockJournal(e.o.disk, journalName(dst)); err != nil {
		return err
	}
	err = e.resume(dst)
	if err == nil {
		err = checkTarget(dst) // another run may have finished meanwhile
	}
	if err != nil {
		e.close()
	}
	return err
}

// close lets go of the files and the lock.
func (e *execution) close() {
	e.closeFiles()
	if e.journal != nil {
		e.journal.f.Close()
	}
}

func (e *execution) closeFiles() {
	for _, f := range e.files {
		if f != nil {
			f.Close()
		}
	}
}

// resume reads the journal and prepares the files.
func (e *execution) resume(dst string) error {
	e.states = make([]tensorState, len(e.plan.Tensors))
	key, err := e.view.key()
	if err != nil {
		return err
	}
	head := journalHead{journalFormat, e.plan.Hash, key}
	ready := false
	old, err := e.journal.read(func(r record) {
		ready = ready || r.Ready
		e.apply(r)
	})
	if err != nil {
		return err
	}
	if old == nil && !e.journal.isOurs() {
		return fmt.Errorf("%s is no journal of an unfinished conversion: remove it", safetensors.Quote(journalName(dst)))
	}
	if old != nil && *old != head && !e.o.NoResume {
		return old.mismatch(head, dst)
	}
	if old != nil && *old == head && !e.o.NoResume && ready && e.reopen() {
		return nil
	}
	return e.startOver(head, old != nil)
}

// key identifies the sources as they are now: a resumed conversion must not mix
// two states of them.
func (v *View) key() (string, error) {
	h := sha256.New()
	for _, f := range v.c.Inventory.Files {
		stat, err := os.Stat(filepath.Join(v.c.dir, f.Name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d %d\n", f.Name, stat.Size(), stat.ModTime().UnixNano())
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// reopen opens the files of the unfinished conversion, if all are as they should be.
func (e *execution) reopen() bool {
	for _, planned := range e.plan.Files {
		path := filepath.Join(e.dir, planned.Name)
		if stat, err := os.Lstat(path); err != nil || !stat.Mode().IsRegular() || stat.Size() != planned.Size {
			return false
		}
	}
	for i := range e.states {
		e.done += e.states[i].done
	}
	return e.openFiles() == nil
}

func (e *execution) openFiles() error {
	e.closeFiles()
	e.files = make([]*tileFile, len(e.plan.Files))
	for i, planned := range e.plan.Files {
		f, err := e.o.disk.openTiles(filepath.Join(e.dir, planned.Name))
		if err != nil {
			return err
		}
		e.files[i] = f
	}
	return nil
}

// startOver makes the files anew. What is there is removed only if the journal says
// that a conversion left it.
func (e *execution) startOver(head journalHead, ours bool) error {
	e.states = make([]tensorState, len(e.plan.Tensors))
	e.done = 0
	if ours {
		if err := e.o.disk.removeAll(e.dir); err != nil {
			return err
		}
	}
	if err := checkFree(filepath.Dir(e.dir), e.plan.Size()); err != nil {
		e.o.disk.remove(e.journal.f.Name())
		return err
	}
	if err := e.journal.begin(head); err != nil {
		return err
	}
	if err := e.o.disk.syncDir(filepath.Dir(e.dir)); err != nil {
		return err
	}
	if err := e.o.disk.mkdir(e.dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			e.o.disk.remove(e.journal.f.Name())
			err = fmt.Errorf("%s is there, and no journal says that it was left by a conversion: remove it", safetensors.Quote(e.dir))
		}
		return err
	}
	return e.layOut()
}

// layOut gives every file its size and its header, then tells the journal.
func (e *execution) layOut() error {
	if err := e.openFiles(); err != nil {
		return err
	}
	for i, f := range e.files {
		if err := f.reserve(e.plan.Files[i].Size); err != nil {
			return err
		}
		if _, err := f.WriteAt(e.plan.shards[i].layout.Header(), 0); err != nil {
			return err
		}
		if err := f.sync(); err != nil {
			return err
		}
	}
	if err := e.o.disk.syncDir(e.dir); err != nil {
		return err
	}
	return e.journal.append(record{Ready: true, Tensor: -1})
}

// checkFree compares what is needed with the free space of the disk.
func checkFree(dir string, need int64) error {
	if free, ok := freeSpace(dir); ok && free < uint64(need) {
		return fmt.Errorf("needs %d bytes of disk, but only %d are free", need, free)
	}
	return nil
}

// work writes and proves.
func (e *execution) work(ctx context.Context) error {
	if err := e.write(ctx); err != nil {
		return err
	}
	if lost := e.lost(); len(lost) > 0 && !e.o.AllowOverflow {
		return &LossError{lost}
	}
	if e.o.NoVerify {
		return nil
	}
	return e.prove(ctx)
}

func (e *execution) lost() (lost []LostTensor) {
	for i := range e.states {
		if e.states[i].lost.Any() {
			lost = append(lost, LostTensor{e.plan.Tensors[i].Name, e.states[i].lost})
		}
	}
	return lost
}

// commit adds the files without weights, the index last, and gives the directory
// its name.
func (e *execution) commit(ctx context.Context, dst string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d := e.o.disk
	for i, f := range e.files {
		e.files[i] = nil
		if err := f.close(); err != nil {
			return err
		}
	}
	for _, f := range e.plan.Others {
		if f.Name == indexName {
			continue
		}
		if err := d.write(filepath.Join(e.dir, f.Name), func(w *diskFile) error { return e.fillOther(w, f) }); err != nil {
			return err
		}
	}
	if err := d.write(filepath.Join(e.dir, manifestName), func(w *diskFile) error { return e.writeManifest(w) }); err != nil {
		return err
	}
	if i := slices.IndexFunc(e.plan.Others, func(f OtherFile) bool { return f.Name == indexName }); i >= 0 {
		if err := d.write(filepath.Join(e.dir, indexName), func(w *diskFile) error { return e.fillOther(w, e.plan.Others[i]) }); err != nil {
			return err
		}
	}
	return e.publish(dst)
}

// fillOther writes a file without weights; one that is carried must be what the
// plan saw.
func (e *execution) fillOther(w io.Writer, f OtherFile) error {
	if !f.Carried {
		_, err := w.Write(f.data)
		return err
	}
	path := filepath.Join(e.view.c.dir, f.Name)
	src, _, err := safetensors.OpenRegular(path)
	if err != nil {
		return err
	}
	defer src.Close()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, h), src); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("%s: changed while the conversion ran", safetensors.Quote(path))
	}
	return nil
}

// publish renames the finished directory and removes the journal. An empty
// directory in the target's place is replaced.
func (e *execution) publish(dst string) error {
	d := e.o.disk
	if err := d.syncDir(e.dir); err != nil {
		return err
	}
	if err := checkTarget(dst); err != nil {
		return err
	}
	if stat, err := os.Lstat(dst); err == nil && stat.IsDir() {
		if err := d.remove(dst); err != nil {
			return err
		}
	}
	if err := d.rename(e.dir, dst); err != nil {
		return err
	}
	if err := d.syncDir(filepath.Dir(dst)); err != nil {
		return err
	}
	return d.remove(journalName(dst))
}
