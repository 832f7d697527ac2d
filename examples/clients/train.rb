#!/usr/bin/env ruby
# frozen_string_literal: true

# Submits a job, prints its progress, and writes its weights, by stubs that protoc made from proto/:
#
#     train.rb HOST:PORT|unix:PATH JOB.yaml MODEL.yaml OUT.safetensors [KEY=VALUE...]
require 'fsdpd/v1/control_services_pb'

V1 = Fsdpd::V1

# Prints a job's progress; true if the job completed.
def watch(client, id)
  state = nil
  client.watch_job(V1::WatchJobRequest.new(id: id)).each do |answer|
    event = answer.event
    case event.event
    when :state then puts "#{state = event.state.state} #{event.state.reason&.message}"
    when :metrics then puts format('step %d loss %.4f', event.metrics.step, event.metrics.loss)
    when :epoch then puts format('epoch %d accuracy %.2f %%', event.epoch.epoch, 100 * event.epoch.accuracy)
    end
  end
  state == :JOB_STATE_SUCCEEDED
end

def pull(client, id, path)
  File.open(path, 'wb') do |file|
    client.pull_state_dict(V1::PullStateDictRequest.new(id: id)).each { |chunk| file.write(chunk.data) }
  end
end

address, job, model, out, *overrides = ARGV
abort 'usage: train.rb HOST:PORT|unix:PATH JOB.yaml MODEL.yaml OUT.safetensors [KEY=VALUE...]' if out.nil?
client = V1::Control::Stub.new(address, :this_channel_is_insecure)
file = V1::JobFile.new(text: File.read(job), name: File.basename(job), overrides: overrides,
                       files: { File.basename(model) => File.read(model) })
id = client.submit_job(V1::SubmitJobRequest.new(job_file: file)).job.id
puts "submitted #{id}"
abort 'the job did not complete' unless watch(client, id)
pull(client, id, out)
