//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"dsmoe/convert/remote/remotetest"
	"dsmoe/model/tensor"
)

// limits are what a command may take; 0 is no limit.
type limits struct {
	memory   int64       // bytes
	sent     int64       // bytes of files that the servers send
	requests int         // to both servers
	status   int         // exit status
	killed   func() bool // reports when the command is to be killed; nil lets it end
}

// measurement runs dsmoe.
type measurement struct {
	*servers
	ctx         context.Context
	dsmoe, work string
	failed      []error
}

// taken is what a command took.
type taken struct {
	command, output string // output of both kinds
	status          int
	wall, processor time.Duration
	memory          int64 // peak of resident bytes
	requests, cut   int
	sent            int64 // bytes of files
}

// run runs a command, prints what it took, holds it to its limits and returns what it printed.
func (m *measurement) run(l limits, args ...string) string {
	t, err := m.measure(l.killed, args)
	if err != nil {
		m.failed = append(m.failed, fmt.Errorf("%s: %w", t.command, err))
		return ""
	}
	fmt.Printf("%-90s %8.1f s %8.1f s CPU %6d MB %7d requests %4d cut %10s\n", t.command, t.wall.Seconds(), t.processor.Seconds(),
		t.memory/1e6, t.requests, t.cut, gigabytes(t.sent))
	if l.killed != nil {
		l.status = 128 + int(syscall.SIGKILL) // as time says it
	}
	m.check(t.status == l.status, t, "exit status %d, not %d: %s", t.status, l.status, t.output)
	m.check(t.memory <= l.memory, t, "%d bytes of memory, more than %d", t.memory, l.memory)
	m.check(l.sent == 0 || t.sent <= l.sent, t, "%d bytes were sent, more than %d", t.sent, l.sent)
	m.check(l.requests == 0 || t.requests <= l.requests, t, "%d requests, more than %d", t.requests, l.requests)
	m.check(t.cut*50 <= t.requests, t, "%d of %d responses were cut, more than 2 %%", t.cut, t.requests)
	return t.output
}

// check notes a failure of a command.
func (m *measurement) check(holds bool, t taken, format string, args ...any) {
	if !holds {
		m.failed = append(m.failed, fmt.Errorf(t.command+": "+format, args...))
	}
}

// measure runs a command until it ends or is killed.
func (m *measurement) measure(killed func() bool, args []string) (t taken, err error) {
	t.command = "dsmoe " + strings.Join(args, " ")
	m.forget()
	// GNU time forks from few pages: a process that exec replaced keeps the peak of the one that it was forked from.
	report := filepath.Join(m.work, "time")
	cmd := exec.CommandContext(m.ctx, "time", append([]string{"-o", report, "-f", "%M %U %S", m.dsmoe}, args...)...)
	var output bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), m.environment...), &output, &output
	start := time.Now()
	if err := m.await(cmd, killed); err != nil {
		return t, err
	}
	t.wall, t.status, t.output = time.Since(start), cmd.ProcessState.ExitCode(), output.String()
	text, err := os.ReadFile(report)
	if err != nil {
		return t, err
	}
	last := strings.TrimSpace(string(text))
	last = last[strings.LastIndexByte(last, '\n')+1:] // after a line on the exit status
	var user, system float64
	if _, err := fmt.Sscan(last, &t.memory, &user, &system); err != nil {
		return t, err
	}
	t.memory, t.processor = t.memory<<10, time.Duration((user+system)*float64(time.Second))
	for _, h := range []*remotetest.Hub{m.hub, m.servers.store} {
		requests, cut, sent := h.Traffic()
		t.requests, t.cut, t.sent = t.requests+requests, t.cut+cut, t.sent+sent
	}
	return t, nil
}

// await runs a command; its exit status is dsmoe's. It kills dsmoe, the child of time, when killed says so.
func (m *measurement) await(cmd *exec.Cmd, killed func() bool) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	for killed != nil && !killed() {
		select {
		case <-ended:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
	if killed != nil {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if pid, err := strconv.Atoi(strings.TrimSpace(string(children))); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	<-ended
	return nil
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// headers runs what reads headers alone.
func (m *measurement) headers() {
	for _, p := range models {
		src := "hf://org/" + p.name
		l := limits{memory: 512 * mib, sent: int64(p.tensors) * 400, requests: 1000}
		for _, command := range []string{"inspect", "inspect ls", "inspect tree", "inspect audit", "inspect arch", "inspect mem"} {
			m.run(l, append(strings.Fields(command), src)...)
		}
		l.memory = 768 * mib
		for _, flags := range []string{"--type bf16", "--to gguf --no-vocab", "--to gguf --type q8_0 --no-vocab", "--experts fused --type bf16"} {
			if p.name == "DeepSeek-V4-Flash" && strings.Contains(flags, "fused") {
				flags += " --names transformers"
			}
			m.run(l, append([]string{"convert", src, filepath.Join(m.work, "out"), "--dry-run"}, strings.Fields(flags)...)...)
		}
	}
}

// values reads all of DeepSeek-V3.
func (m *measurement) values() {
	n := m.bytes["DeepSeek-V3"]
	m.run(limits{memory: 512 * mib, sent: n + n/20, requests: 200_000}, "inspect", "audit", "--values", "hf://org/DeepSeek-V3")
}

// theLayer is a layer with experts of DeepSeek-V3, and about its bytes.
const (
	theLayer      = 30
	theLayerBytes = 11_650_000_000
)

// layer reads one layer of DeepSeek-V3.
func (m *measurement) layer() {
	l := limits{memory: 512 * mib, sent: theLayerBytes * 21 / 20, requests: 12_000}
	for _, command := range []string{"router", "hash", "stats", "experts"} {
		if command == "experts" {
			l.sent *= 2 // each expert whole, and then all of them side by side, of which memory has a piece of each
		}
		m.run(l, "inspect", command, "--layers", fmt.Sprint(theLayer), "hf://org/DeepSeek-V3")
	}
}

// verify verifies that layer with a pack of tokens that choose most of its experts.
func (m *measurement) verify() {
	const tokens = 256
	src, dir := "hf://org/DeepSeek-V3", filepath.Join(m.work, "pack")
	if err := m.record(src, dir, theLayer, tokens, tensor.BF16); err != nil {
		m.failed = append(m.failed, err)
		return
	}
	m.run(limits{memory: 2 * gib, sent: theLayerBytes * 21 / 20, requests: 5000}, "verify", src, dir)
}

// record records a pack while this process finds the servers as dsmoe does.
func (m *measurement) record(src, dir string, layer, tokens int, d tensor.DType) error {
	for _, line := range m.environment {
		name, value, _ := strings.Cut(line, "=")
		os.Setenv(name, value)
	}
	_, err := record(src, dir, layer, tokens, d)
	return err
}

// store writes the dense layers to the store.
func (m *measurement) store() {
	m.resumed(1_760_000_000, 1_860_000_000, "convert", "hf://org/DeepSeek-V3", "s3://out/dense-Q8_0.gguf", "--type", "q8_0", "--no-vocab",
		"--include", "model.layers.[012].*")
}

// whole converts all of DeepSeek-V3.
func (m *measurement) whole() {
	m.resumed(m.bytes["DeepSeek-V3"], 713_281_294_336, "convert", "hf://org/DeepSeek-V3", "s3://out/DeepSeek-V3-Q8_0.gguf", "--type",
		"q8_0", "--no-vocab")
}

// bf16 converts all of DeepSeek-V3 into shards of BF16, which are twice its bytes.
func (m *measurement) bf16() {
	n := m.bytes["DeepSeek-V3"]
	output := m.run(limits{memory: gib, sent: 3 * n * 21 / 20}, "convert", "hf://org/DeepSeek-V3", "s3://out/DeepSeek-V3-BF16", "--type", "bf16")
	m.verified(output)
}

// resumed runs a conversion that reads and writes so many bytes, kills it when the store has half of what is written, goes
// on with it, and compares the output with its manifest. The tensors that are not all in the store are read twice.
func (m *measurement) resumed(read, written int64, args ...string) {
	half := m.chunks.taken.Load() + written/2
	m.run(limits{memory: gib, sent: read, killed: func() bool { return m.chunks.taken.Load() >= half }}, args...)
	output := m.run(limits{memory: gib, sent: (read + written) * 21 / 20}, args...)
	m.verified(output)
	if !strings.Contains(output, "resumed: ") {
		m.failed = append(m.failed, fmt.Errorf("not resumed: %s", output))
	}
	m.run(limits{memory: gib, sent: written * 21 / 20}, "convert", "--check", args[2])
}

// verified demands that a conversion says so.
func (m *measurement) verified(output string) {
	if !strings.Contains(output, ", verified\n") {
		m.failed = append(m.failed, fmt.Errorf("not verified: %s", output))
	}
}

// parts converts one layer in 16 parts as an array of Slurm does, on the disk: 14 GB. Part 7 is killed, and runs again.
func (m *measurement) parts() {
	dst := filepath.Join(m.work, "layer.gguf")
	args := []string{"convert", "hf://org/DeepSeek-V3", dst, "--type", "q8_0", "--no-vocab", "--layers", fmt.Sprint(theLayer)}
	part := func(i int) []string { return append(args[:len(args):len(args)], "--part", fmt.Sprintf("%d/16", i)) }
	for i := range 16 {
		if i+1 == 7 {
			m.run(limits{memory: gib, killed: func() bool { _, _, sent := m.hub.Traffic(); return sent > 200_000_000 }}, part(7)...)
			m.run(limits{memory: gib, status: 2}, append(args[:len(args):len(args)], "--finish")...)
		}
		m.run(limits{memory: gib}, part(i+1)...)
	}
	m.run(limits{memory: gib}, append(args[:len(args):len(args)], "--finish")...)
	m.run(limits{memory: gib}, "convert", "--check", dst)
}
