// S3 compares what dsmoe reads of an object store and writes to one with what it does on the disk. It starts the S3
// server versitygw, puts fixtures into a bucket, and runs dsmoe behind a proxy that breaks 30 % of the requests, and
// kills conversions: every output must have the same bytes, and none the secret key.
//
//	go run ./scripts/s3 VERSITYGW DSMOE
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	key    = "AKIADSMOE"
	secret = "3aSecretOfThisTest"
)

func main() {
	log.SetFlags(0)
	work, err := os.MkdirTemp("", "dsmoe-s3-")
	if err == nil {
		err = errors.Join(check(work, os.Args[1], os.Args[2]), os.RemoveAll(work))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// check starts the servers and compares outputs.
func check(work, gateway, dsmoe string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	server, err := serve(ctx, work, gateway)
	if err != nil {
		return err
	}
	proxy, requests, broken := breaking(server)
	defer proxy.Close()
	c := comparison{dsmoe: dsmoe, work: work, environment: append(os.Environ(), "AWS_ENDPOINT_URL="+proxy.URL,
		"AWS_ACCESS_KEY_ID="+key, "AWS_SECRET_ACCESS_KEY="+secret, "AWS_REGION=us-east-1",
		"AWS_SESSION_TOKEN=", "AWS_PROFILE=",
		"AWS_CONFIG_FILE="+filepath.Join(work, "none"), "AWS_SHARED_CREDENTIALS_FILE="+filepath.Join(work, "none"))}
	c.writes("convert fixtures/v3-fp8/checkpoint DST --type f32 --max-shard-size none", "out", requests)
	c.writes("convert fixtures/v1-base/checkpoint DST --type q8_0 --name x --no-vocab", "x.gguf", requests)
	for _, name := range []string{"v1-base", "v3-fp8"} {
		if err := upload(server, "fixtures/"+name+"/checkpoint", "/models/a dir/"+name); err != nil {
			return err
		}
		c.fixture(name)
	}
	if c.err == nil && broken.Load() < 20 {
		return fmt.Errorf("only %d requests were broken", broken.Load())
	}
	fmt.Printf("%d outputs are the same with S3 as on the disk; %d requests were broken\n", c.compared, broken.Load())
	return c.err
}

// serve starts versitygw with an empty bucket, and returns its URL.
func serve(ctx context.Context, work, gateway string) (*url.URL, error) {
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := port.Addr().String()
	port.Close()
	root := filepath.Join(work, "root")
	if err := os.MkdirAll(filepath.Join(root, "models"), 0o755); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, gateway, "--port", address, "posix", root)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for range 200 {
		if conn, err := net.Dial("tcp", address); err == nil {
			return &url.URL{Scheme: "http", Host: address}, conn.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, errors.New("versitygw does not listen")
}

// breaking is a proxy that answers 15 % of the requests with 503, and breaks off 15 %.
func breaking(server *url.URL) (s *httptest.Server, requests, broken *atomic.Int64) {
	requests, broken = new(atomic.Int64), new(atomic.Int64)
	proxy := httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(server)
		r.Out.Host = r.In.Host // which the signature covers
	}, ErrorLog: log.New(new(bytes.Buffer), "", 0)}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		if n*37%100 >= 30 {
			proxy.ServeHTTP(w, r)
			return
		}
		broken.Add(1)
		if n%2 == 0 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(&cut{w, 700}, r)
	})), requests, broken
}

// cut is a response that breaks off after left bytes.
type cut struct {
	http.ResponseWriter
	left int
}

// Write writes until the response breaks off.
func (c *cut) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	c.left -= n
	c.ResponseWriter.Write(b[:n])
	if n < len(b) {
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

// upload puts the files of a directory into the bucket.
func upload(server *url.URL, dir, prefix string) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		r, err := http.NewRequest(http.MethodPut, server.JoinPath(prefix, name).String(), bytes.NewReader(data))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		hash := hex.EncodeToString(sum[:])
		r.Header.Set("X-Amz-Content-Sha256", hash)
		credentials := aws.Credentials{AccessKeyID: key, SecretAccessKey: secret}
		signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
		if err := signer.SignHTTP(context.Background(), credentials, r, hash, "s3", "us-east-1", time.Now()); err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", name, resp.Status)
		}
		return resp.Body.Close()
	})
}

// comparison runs dsmoe with a checkpoint on the disk, and with the same one in the bucket.
type comparison struct {
	dsmoe, work string
	environment []string
	compared    int
	err         error // the first one
}

// fixture compares the commands that read a checkpoint.
func (c *comparison) fixture(name string) {
	for _, command := range []string{"inspect audit --values SRC --json", "inspect hash SRC --json",
		"inspect stats SRC --json",
		"verify SRC fixtures/" + name + "/golden-f32 --json", "convert SRC DST --type bf16",
		"convert SRC DST --to gguf --name x --no-vocab"} {
		src := "fixtures/" + name + "/checkpoint"
		want := c.run(command, src, filepath.Join(c.work, "disk"))
		got := c.run(command, "s3://models/a dir/"+name, filepath.Join(c.work, "s3"))
		if c.compared++; c.err == nil && !bytes.Equal(want, got) {
			c.err = fmt.Errorf("%s: %s: S3 gives\n%s\n, the disk\n%s", name, command, got, want)
		}
	}
}

// volatile are what a document says of the run and not of the checkpoint: its path, its time, its memory, and samples
// of weights, which are taken of files on the disk alone.
var volatile = regexp.MustCompile(`(?m)^ *"samples": \{[^}]*\}\n|` +
	`^.*"(path|checkpoint|duration_s|peak_[a-z_]+|mapped_[a-z_]+)":.*\n`)

// run runs a command, and returns what it prints and the hashes of what it writes at dst, which is removed.
func (c *comparison) run(command, src, dst string) []byte {
	args := strings.Fields(command)
	for i, a := range args {
		args[i] = strings.NewReplacer("SRC", src, "DST", dst).Replace(a)
	}
	cmd := exec.Command(c.dsmoe, args...)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = c.environment, &stderr
	out, err := cmd.Output()
	c.refuseSecret(command, append(stderr.Bytes(), out...))
	if err != nil && cmd.ProcessState.ExitCode() != 1 {
		c.fail(fmt.Errorf("%s: %w: %s", command, err, stderr.String()))
	}
	if !strings.Contains(command, "DST") {
		return volatile.ReplaceAll(out, nil)
	}
	files, err := filepath.Glob(filepath.Join(dst, "*"))
	if err != nil || len(files) < 2 {
		c.fail(fmt.Errorf("%s: no output", command))
	}
	var sums []byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		c.fail(err)
		c.refuseSecret(file, data)
		if !strings.HasSuffix(file, "manifest.json") { // it names the source
			sums = fmt.Appendf(sums, "%x %s\n", sha256.Sum256(data), filepath.Base(file))
		}
	}
	c.fail(os.RemoveAll(dst))
	return sums
}

// refuseSecret fails if text has the secret key.
func (c *comparison) refuseSecret(what string, text []byte) {
	if bytes.Contains(text, []byte(secret)) {
		c.fail(fmt.Errorf("%s: holds the secret key", what))
	}
}

// fail keeps the first error.
func (c *comparison) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}
