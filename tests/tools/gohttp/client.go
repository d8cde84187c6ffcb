package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Errors shown before the client only counts.
	shown = 10
	// What the proxy keeps of a body until the server has answered. Longer ones it cannot send again to another server, and says so.
	kept = 64 << 10
	// How often client-go sends a request again that was answered with Retry-After.
	repeats = 10
)

// load is what the client does.
type load struct {
	urls     []string
	requests int64
	maxBody  int
	protocol int

	next, bytes, repeated, failures atomic.Int64
}

func runClient(args []string) error {
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	ca := flags.String("ca", "", "authority of the server's certificate, PEM")
	http1 := flags.Bool("http1", false, "HTTP/1.1 in place of HTTP/2")
	transports := flags.Int("transports", 8, "transports: a connection each with HTTP/2, a pool of them with HTTP/1.1")
	goroutines := flags.Int("goroutines", 16, "requests under way on each transport")
	requests := flags.Int64("requests", 1000, "requests in all")
	maxBody := flags.Int("max-body", 1<<20, "longest body, bytes")
	flags.Parse(args)

	config := &tls.Config{RootCAs: x509.NewCertPool()}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return err
	}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: no certificate", *ca)
	}
	load := &load{urls: flags.Args(), requests: *requests, maxBody: *maxBody, protocol: 2}
	if *http1 {
		load.protocol = 1
	}
	if len(load.urls) == 0 {
		return errors.New("no URL")
	}
	began := time.Now()
	var running sync.WaitGroup
	for range *transports {
		client := &http.Client{Transport: transport(config, load.protocol, *goroutines), Timeout: time.Minute}
		for range *goroutines {
			running.Go(func() { load.run(client) })
		}
	}
	running.Wait()
	fmt.Printf("%d requests, %d body bytes, %d sent again, %d failures, %.1f s\n",
		load.requests, load.bytes.Load(), load.repeated.Load(), load.failures.Load(), time.Since(began).Seconds())
	if failures := load.failures.Load(); failures > 0 {
		return fmt.Errorf("%d of %d requests failed", failures, load.requests)
	}
	return nil
}

func transport(config *tls.Config, protocol, goroutines int) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(protocol == 1)
	protocols.SetHTTP2(protocol == 2)
	return &http.Transport{
		TLSClientConfig:     config.Clone(),
		Protocols:           protocols,
		MaxIdleConnsPerHost: goroutines,
		DisableCompression:  true,
	}
}

// run sends requests until enough were sent.
func (load *load) run(client *http.Client) {
	for {
		nth := load.next.Add(1)
		if nth > load.requests {
			return
		}
		if err := load.request(client, uint64(nth)); err != nil {
			if load.failures.Add(1) <= shown {
				fmt.Fprintf(os.Stderr, "request %d: %v\n", nth, err)
			}
		}
	}
}

// request sends one request, again where the proxy could not, and compares every byte of its answer.
func (load *load) request(client *http.Client, nth uint64) error {
	random := rand.New(rand.NewPCG(nth, nth))
	expected := make([]byte, load.size(random))
	pattern(expected, nth)
	kind := random.IntN(4)
	for left := repeats; ; left-- {
		request, err := load.make(kind, nth, expected)
		if err != nil {
			return err
		}
		again, err := load.try(client, request, expected)
		if err != nil {
			return fmt.Errorf("%s of %d bytes: %w", request.Method, len(expected), err)
		}
		if !again {
			return nil
		}
		if left == 0 || len(expected) <= kept || request.Method == http.MethodGet {
			return fmt.Errorf("%s of %d bytes: refused", request.Method, len(expected))
		}
		load.repeated.Add(1)
	}
}

// try sends a request once. again: nobody took it, and it should be sent again. Over HTTP/2 the proxy says that with REFUSED_STREAM,
// which Go's transport obeys by itself; over HTTP/1.1 with Retry-After, which is left to client-go.
func (load *load) try(client *http.Client, request *http.Request, expected []byte) (again bool, err error) {
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return false, fmt.Errorf("%d bytes of the answer: %w", len(body), err)
	case response.ProtoMajor != load.protocol:
		return false, fmt.Errorf("answered in %s", response.Proto)
	case response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "":
		return true, nil
	case response.StatusCode/100 != 2:
		return false, fmt.Errorf("%s: %.200s", response.Status, body)
	case !bytes.Equal(body, expected):
		return false, fmt.Errorf("answered with %d other bytes", len(body))
	}
	load.bytes.Add(int64(len(body)))
	return false, nil
}

// size is that of a body: most are small, some are empty, one in two hundred is as long as it may be.
func (load *load) size(random *rand.Rand) int {
	limit := 1 << 10
	switch chance := random.IntN(200); {
	case chance == 0:
		return load.maxBody
	case chance < 10:
		limit = 128 << 10
	case chance < 50:
		limit = 16 << 10
	case chance < 80:
		limit = 1
	}
	return random.IntN(min(limit, load.maxBody))
}

func (load *load) make(kind int, nth uint64, body []byte) (*http.Request, error) {
	target := load.urls[nth%uint64(len(load.urls))]
	switch kind {
	case 0:
		// Without content-length. It can be sent again, as what client-go sends can.
		request, err := http.NewRequest(http.MethodPost, target, io.NopCloser(bytes.NewReader(body)))
		if err == nil {
			request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		}
		return request, err
	case 1:
		return http.NewRequest(http.MethodPut, target, bytes.NewReader(body))
	default:
		query := url.Values{"size": {strconv.Itoa(len(body))}, "seed": {strconv.FormatUint(nth, 10)}}
		return http.NewRequest(http.MethodGet, target+"?"+query.Encode(), nil)
	}
}
