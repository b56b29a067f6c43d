package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// writes compares a conversion into the bucket, which is killed several times and continued, with one to the disk.
// command names the target DST; name is the name of a directory or of a GGUF file.
func (c *comparison) writes(command, name string, requests *atomic.Int64) {
	disk, killed, prefix := filepath.Join(c.work, "disk"), 0, "new +é%41 "+name
	c.fail(os.MkdirAll(disk, 0o755))
	c.convert(command, filepath.Join(disk, name), nil)
	for _, n := range []int64{6, 20, 35, 50, 65} {
		last := requests.Load() + n
		if !c.convert(command, "s3://models/"+prefix+"/"+name, func() bool { return requests.Load() >= last }) {
			break
		}
		killed++
	}
	if killed < 2 {
		c.fail(fmt.Errorf("%s: killed only %d times", command, killed))
	}
	c.convert(command, "s3://models/"+prefix+"/"+name, nil)
	want, got := c.files(disk), c.files(filepath.Join(c.work, "root", "models", prefix))
	if c.compared++; !bytes.Equal(want, got) {
		c.fail(fmt.Errorf("%s: the bucket has\n%s\n, the disk\n%s", command, got, want))
	}
	c.run("convert --check SRC", "s3://models/"+prefix+"/"+name, "")
	c.fail(os.RemoveAll(disk))
}

// convert runs a conversion until it ends or, if kill is not nil and says so, is killed, which it reports.
func (c *comparison) convert(command, dst string, kill func() bool) (killed bool) {
	var output bytes.Buffer
	args := strings.Fields(command)
	args[slices.Index(args, "DST")] = dst
	cmd := exec.Command(c.dsmoe, args...)
	cmd.Env, cmd.Stderr, cmd.Stdout = c.environment, &output, &output
	if err := cmd.Start(); err != nil {
		c.fail(err)
		return false
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil && !killed {
				c.fail(fmt.Errorf("%s: %w: %s", command, err, output.String()))
			}
			c.refuseSecret(command, output.Bytes())
			return killed && err != nil
		case <-time.After(time.Millisecond):
			if kill != nil && !killed && kill() {
				killed = true
				c.fail(cmd.Process.Kill())
			}
		}
	}
}

// files returns the hashes and names of the files below a directory.
func (c *comparison) files(dir string) (all []byte) {
	c.fail(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		c.refuseSecret(path, data)
		all = fmt.Appendf(all, "%x %s\n", sha256.Sum256(data), strings.TrimPrefix(path, dir))
		return err
	}))
	return all
}
